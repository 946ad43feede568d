// The limit of memory: reads arrays and writes one, with vector instructions on all cores, and does nothing else.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

// Elements that a thread takes at a time: much more than a page, much less than an array.
constexpr int64_t kBlock = int64_t{1} << 17;

// Threads that wait between calls, as those of TensorFlow do; the calling thread works, too.
class Team {
 public:
  explicit Team(int threads) {
    for (int i = 1; i < threads; ++i) std::thread([this] { Serve(); }).detach();
    helpers_ = threads - 1;
  }

  void ForEachBlock(int64_t count, const std::function<void(int64_t, int64_t)>& work) {
    if (count <= kBlock) return work(0, count);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      count_ = count;
      work_ = &work;
      next_ = 0;
      busy_ = helpers_;
      ++generation_;
    }
    wake_.notify_all();
    TakeBlocks();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void TakeBlocks() {
    for (int64_t begin; (begin = next_.fetch_add(kBlock)) < count_;) {
      (*work_)(begin, begin + kBlock < count_ ? begin + kBlock : count_);
    }
  }

  void Serve() {
    int64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      lock.unlock();
      TakeBlocks();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<int64_t> next_{0};
  const std::function<void(int64_t, int64_t)>* work_ = nullptr;
  int64_t count_ = 0, generation_ = 0;
  int helpers_ = 0, busy_ = 0;
};

Team* team = nullptr;

// out = a * b, or a * 2 where there is no b, past the caches: what is written is not read first.
void MultiplyBlock(const float* a, const float* b, float* out, int64_t begin, int64_t end) {
  int64_t i = begin;
#if defined(__AVX512F__)
  const __m512 two = _mm512_set1_ps(2.0f);
  for (; i + 16 <= end; i += 16) {
    _mm512_stream_ps(out + i, _mm512_mul_ps(_mm512_loadu_ps(a + i), b ? _mm512_loadu_ps(b + i) : two));
  }
  _mm_sfence();
#elif defined(__AVX__)
  const __m256 two = _mm256_set1_ps(2.0f);
  for (; i + 8 <= end; i += 8) {
    _mm256_stream_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(a + i), b ? _mm256_loadu_ps(b + i) : two));
  }
  _mm_sfence();
#endif
  for (; i < end; ++i) out[i] = a[i] * (b ? b[i] : 2.0f);
}

uint32_t ReadBlock(const uint32_t* a, int64_t begin, int64_t end) {
  uint32_t all = 0;
  for (int64_t i = begin; i < end; ++i) all |= a[i];
  return all;
}

uint32_t ReadBlock(const uint32_t* a, const uint32_t* b, int64_t begin, int64_t end) {
  uint32_t all = 0;
  for (int64_t i = begin; i < end; ++i) all |= a[i] | b[i];
  return all;
}

}  // namespace

extern "C" {

void Start(int threads) { team = new Team(threads); }

// Reads one array, or two, once.
uint32_t Read(const uint32_t* a, const uint32_t* b, int64_t count) {
  std::atomic<uint32_t> all{0};
  team->ForEachBlock(
      count, [&](int64_t begin, int64_t end) { all |= b ? ReadBlock(a, b, begin, end) : ReadBlock(a, begin, end); });
  return all;
}

// Multiplies into memory that is there already.
void Multiply(const float* a, const float* b, float* out, int64_t count) {
  team->ForEachBlock(count, [&](int64_t begin, int64_t end) { MultiplyBlock(a, b, out, begin, end); });
}

}  // extern "C"
