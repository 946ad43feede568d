// How fast memory is: reads arrays and writes one, with vector instructions on all cores, and does nothing else.

#include <cstdint>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

// How many elements a thread takes at a time: much more than a page, much less than an array.
constexpr int64_t kBlock = int64_t{1} << 17;

int64_t Blocks(int64_t count) { return (count + kBlock - 1) / kBlock; }

int64_t End(int64_t block, int64_t count) { return (block + 1) * kBlock < count ? (block + 1) * kBlock : count; }

// out = a * b, or a * 2 without b. It writes past the caches, so that out is not read first.
void MultiplyBlock(const float* a, const float* b, float* out, int64_t begin, int64_t end) {
  int64_t i = begin;
#ifdef __AVX__
  const __m256 two = _mm256_set1_ps(2.0f);
  for (; i + 8 <= end; i += 8) {
    _mm256_stream_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(a + i), b ? _mm256_loadu_ps(b + i) : two));
  }
  _mm_sfence();
#endif
  for (; i < end; ++i) out[i] = a[i] * (b ? b[i] : 2.0f);
}

uint32_t ReadBlock(const uint32_t* a, const uint32_t* b, int64_t begin, int64_t end) {
  uint32_t all = 0;
  if (b) {
    for (int64_t i = begin; i < end; ++i) all |= a[i] | b[i];
  } else {
    for (int64_t i = begin; i < end; ++i) all |= a[i];
  }
  return all;
}

}  // namespace

extern "C" {

// Reads one array, or two, once.
uint32_t Read(const uint32_t* a, const uint32_t* b, int64_t count) {
  uint32_t all = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : all) if (count > kBlock)
  for (int64_t block = 0; block < Blocks(count); ++block) all |= ReadBlock(a, b, block * kBlock, End(block, count));
  return all;
}

// Multiplies into memory that is mapped already.
void Multiply(const float* a, const float* b, float* out, int64_t count) {
#pragma omp parallel for schedule(dynamic) if (count > kBlock)
  for (int64_t block = 0; block < Blocks(count); ++block) {
    MultiplyBlock(a, b, out, block * kBlock, End(block, count));
  }
}

}  // extern "C"
