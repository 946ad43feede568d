// Checks every kernel against the CPU, and times it against a yardstick that moves as many bytes: for sums, a kernel
// that only reads; for everything else, a copy on the device. It needs a GPU and nvcc, but not TensorFlow: `make
// cuda-check`.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cc/lib/alignment.h"
#include "cc/lib/arithmetic.h"
#include "cc/lib/contraction_plan.h"
#include "cuda/check/forms.h"
#include "cuda/check/read.h"
#include "cuda/check/reference.h"
#include "cuda/contraction.h"

namespace tf_cg_ops::cuda::check {
namespace {

// The required fraction of the yardstick's speed, and from how many bytes on it is required: fewer fit into a GPU's
// caches.
constexpr double kTarget = 0.92;
constexpr int64_t kTargetBytes = int64_t{256} << 20;

// Only operands of up to this number of bytes are compared, because the reference takes too long for larger ones.
constexpr int64_t kLargestChecked = int64_t{64} << 20;

struct Options {
  bool quick = false;
  bool times_only = false;
  std::string csv;
  std::string dtype;  // All of them if empty.
  std::string only;

  bool Wants(const Form& form) const { return form.name.find(only) != std::string::npos; }
};

struct Totals {
  int64_t checked = 0;
  int64_t wrong = 0;
  int64_t timed = 0;
  int64_t missed = 0;
  double worst_fraction = std::numeric_limits<double>::infinity();
  std::string worst;
};

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_check: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

// Device memory for `count` elements that begin `offset` elements after a boundary of 256 bytes. The memory around them
// is filled with a pattern, which shows writes out of bounds.
template <typename T>
class Buffer {
 public:
  Buffer(int64_t count, int64_t offset) : count_(count), offset_(offset), bytes_((count + offset) * sizeof(T) + 512) {
    Require(cudaMalloc(&memory_, bytes_), "no memory on the device");
    Require(cudaMemset(memory_, kFill, bytes_), "cudaMemset");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(memory_); }

  T* data() const { return reinterpret_cast<T*>(memory_) + offset_; }

  void Set(const std::vector<T>& elements) {
    Require(cudaMemcpy(data(), elements.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }

  // Returns the elements on the device, and sets *intact to whether the memory around them is unchanged.
  std::vector<T> Get(bool* intact) const {
    std::vector<unsigned char> all(bytes_);
    Require(cudaMemcpy(all.data(), memory_, bytes_, cudaMemcpyDeviceToHost), "copy from the device");
    const size_t begin = offset_ * sizeof(T), end = begin + count_ * sizeof(T);
    const auto is_fill = [](unsigned char byte) { return byte == kFill; };
    *intact =
        std::all_of(all.begin(), all.begin() + begin, is_fill) && std::all_of(all.begin() + end, all.end(), is_fill);
    std::vector<T> elements(count_);
    if (count_ > 0) std::memcpy(static_cast<void*>(elements.data()), all.data() + begin, end - begin);
    return elements;
  }

 private:
  static constexpr unsigned char kFill = 0xa5;
  int64_t count_;
  int64_t offset_;
  int64_t bytes_;
  unsigned char* memory_ = nullptr;
};

ContractionPlan PlanOf(const Shapes& shapes) {
  Alignment alignment;
  alignment.operands = {shapes.lhs, shapes.rhs, shapes.out};
  alignment.iteration_space = shapes.out;
  for (size_t i = 0; i < alignment.iteration_space.size(); ++i) {
    for (const Dims& dims : alignment.operands) {
      if (dims[i] != 1) alignment.iteration_space[i] = dims[i];
    }
  }
  return PlanContraction(alignment, kX);
}

// The offsets of operands and out from a boundary, in elements.
struct Offsets {
  int64_t lhs;
  int64_t rhs;
  int64_t out;
};

// The values of the operands.
enum class Numbers { kReal, kSmallIntegers };

// The plan and the device memory of one launch.
template <typename T>
struct Task {
  Task(const Shapes& shapes, const Offsets& offsets)
      : plan(PlanOf(shapes)),
        lhs(Elements(shapes.lhs), offsets.lhs),
        rhs(Elements(shapes.rhs), offsets.rhs),
        out(Elements(shapes.out), offsets.out),
        scratch(ScratchBytes<T>(plan), 0) {}

  void Launch(Stream stream) const {
    const std::string error = Contract(plan, /*conjugate=*/true, lhs.data(), rhs.data(), out.data(),
                                       static_cast<void*>(scratch.data()), stream);
    if (error.empty()) return;
    std::fprintf(stderr, "cuda_check: %s\n", error.c_str());
    std::exit(2);
  }

  ContractionPlan plan;
  Buffer<T> lhs;
  Buffer<T> rhs;
  Buffer<T> out;
  Buffer<unsigned char> scratch;
};

// Runs a case twice and compares both results with the reference and with each other.
template <typename T>
void Check(const std::string& dtype, const Form& form, int64_t n, const Offsets& offsets, Numbers numbers,
           Stream stream, std::mt19937_64* random_numbers, Totals* totals) {
  const Shapes shapes = form.shapes(n);
  const bool is_exact = numbers == Numbers::kSmallIntegers;
  const auto make = is_exact ? SmallIntegers<T> : RandomElements<T>;
  const std::vector<T> lhs = make(Elements(shapes.lhs), random_numbers);
  const std::vector<T> rhs = make(Elements(shapes.rhs), random_numbers);
  const Expected expected = Reference(shapes, lhs, rhs);
  std::vector<T> first;
  for (int run = 0; run < 2; ++run) {
    Task<T> task(shapes, offsets);
    task.lhs.Set(lhs);
    task.rhs.Set(rhs);
    task.Launch(stream);
    Require(cudaStreamSynchronize(stream), "a kernel failed");
    bool intact = true, scratch_is_intact = true;
    const std::vector<T> out = task.out.Get(&intact);
    task.scratch.Get(&scratch_is_intact);
    ++totals->checked;
    const double error = is_exact ? ErrorOfExact(out, expected) : ErrorOf(out, expected);
    const bool same = run == 0 || out.empty() || std::memcmp(out.data(), first.data(), out.size() * sizeof(T)) == 0;
    if (error <= 1 && intact && scratch_is_intact && same) {
      first = out;
      continue;
    }
    ++totals->wrong;
    std::printf("WRONG: %s, %s, n = %lld, %lld elements behind a boundary: error %g of what is allowed%s%s\n",
                form.name.c_str(), dtype.c_str(), static_cast<long long>(n), static_cast<long long>(offsets.lhs), error,
                intact && scratch_is_intact ? "" : ", wrote beyond its memory",
                same ? "" : ", another result each time");
    return;
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The milliseconds of one launch, as the mean of several in a row.
template <typename F>
double TimeOf(int launches, Stream stream, const F& launch) {
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin), "cudaEventCreate");
  Require(cudaEventCreate(&end), "cudaEventCreate");
  Require(cudaEventRecord(begin, stream), "cudaEventRecord");
  for (int i = 0; i < launches; ++i) launch();
  Require(cudaEventRecord(end, stream), "cudaEventRecord");
  Require(cudaStreamSynchronize(stream), "a kernel failed");
  float milliseconds = 0;
  Require(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds / launches;
}

template <typename T>
void Time(const std::string& dtype, const Form& form, int64_t bytes, const Options& options, Stream stream, FILE* csv,
          Totals* totals) {
  // About `bytes` in all: two large operands, or one and a large out.
  const int64_t n = std::max<int64_t>(bytes / 2 / sizeof(T) / 65536, 1) * 65536;
  const Shapes shapes = form.shapes(n);
  const Task<T> task(shapes, {0, 0, 0});
  const int64_t moved = (Elements(shapes.lhs) + Elements(shapes.rhs) + Elements(shapes.out)) * sizeof(T);
  // A copy writes as many bytes as it reads, sums write almost nothing.
  const bool sums = !task.plan.reduction_loops.empty();
  const Buffer<unsigned char> from(sums ? moved : moved / 2, 0), to(sums ? kReadResultBytes : moved / 2, 0);
  const auto yardstick = [&] {
    if (sums) {
      Require(Read(from.data(), moved, to.data(), stream), "the reading of memory failed");
    } else {
      Require(cudaMemcpyAsync(to.data(), from.data(), moved / 2, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
    }
  };
  const auto launch = [&] { task.Launch(stream); };
  const int rounds = options.quick ? 1 : 9, launches = options.quick ? 1 : 10;
  if (!options.quick) {
    TimeOf(launches, stream, yardstick);
    TimeOf(launches, stream, launch);
  }
  std::vector<double> kernel_times, yardstick_times, fractions;
  for (int round = 0; round < rounds; ++round) {
    yardstick_times.push_back(TimeOf(launches, stream, yardstick));
    kernel_times.push_back(TimeOf(launches, stream, launch));
    fractions.push_back(yardstick_times.back() / kernel_times.back());
  }
  const double fraction = Median(fractions), milliseconds = Median(kernel_times);
  const double mebibytes = static_cast<double>(moved) / (1 << 20);
  const char* const name = sums ? "read" : "copy";
  std::printf("| %s | %s | %.0f | %.4f | %.0f | %s | %.3f |\n", form.name.c_str(), dtype.c_str(), mebibytes,
              milliseconds, moved / milliseconds / 1e6, name, fraction);
  if (csv != nullptr) {
    std::fprintf(csv, "\"%s\",%s,%lld,%.6g,%s,%.6g,%.4g\n", form.name.c_str(), dtype.c_str(),
                 static_cast<long long>(moved), milliseconds, name, Median(yardstick_times), fraction);
  }
  if (moved < kTargetBytes) return;
  ++totals->timed;
  if (fraction < kTarget) ++totals->missed;
  if (fraction < totals->worst_fraction) {
    totals->worst_fraction = fraction;
    totals->worst = form.name + ", " + dtype + ", " + std::to_string(moved >> 20) + " MiB";
  }
}

template <typename T>
void CheckAll(const std::string& dtype, const Options& options, Stream stream, Totals* totals) {
  std::mt19937_64 random_numbers(20240229);
  std::vector<int64_t> sizes = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 171, 513};
  if (!options.quick) {
    sizes.insert(sizes.end(), {127, 128, 255, 256, 257, 1000, 1023, 1024, 1025, 4097, 65536, 100003});
    for (int i = 0; i < 20; ++i) sizes.push_back(random_numbers() % 20000);
  }
  for (const Form& form : CheckedForms()) {
    if (!options.Wants(form)) continue;
    for (const int64_t n : sizes) {
      for (const Offsets& offsets : {Offsets{0, 0, 0}, Offsets{1, 0, 1}, Offsets{0, 1, 0}, Offsets{1, 1, 1}}) {
        Check<T>(dtype, form, n, offsets, Numbers::kReal, stream, &random_numbers, totals);
      }
    }
  }
  // Also at a size with many blocks and parts.
  for (const Form& form : TimedForms()) {
    if (!options.Wants(form)) continue;
    const int64_t n = options.quick ? 65536 : kLargestChecked / static_cast<int64_t>(sizeof(T));
    for (const Numbers numbers : {Numbers::kReal, Numbers::kSmallIntegers}) {
      Check<T>(dtype, form, n, {0, 0, 0}, numbers, stream, &random_numbers, totals);
    }
  }
  std::printf("checked %s: %lld results so far, %lld wrong\n", dtype.c_str(), static_cast<long long>(totals->checked),
              static_cast<long long>(totals->wrong));
  std::fflush(stdout);
}

template <typename T>
void TimeAll(const std::string& dtype, const Options& options, Stream stream, FILE* csv, Totals* totals) {
  size_t free_bytes = 0, total_bytes = 0;
  Require(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  for (const Form& form : TimedForms()) {
    if (!options.Wants(form)) continue;
    for (const int64_t mebibytes : {1, 16, 64, 256, 1024}) {
      const int64_t bytes = mebibytes << 20;
      // Operands, out, the buffers of the copy, and a reserve.
      if ((options.quick && mebibytes > 1) || bytes * 4 > static_cast<int64_t>(free_bytes)) break;
      Time<T>(dtype, form, bytes, options, stream, csv, totals);
    }
  }
  std::fflush(stdout);
}

template <typename F>
void ForEachType(const F& run) {
  run("float16", Half());
  run("bfloat16", BFloat16());
  run("float32", float());
  run("float64", double());
  run("complex64", std::complex<float>());
  run("complex128", std::complex<double>());
}

int Main(const Options& options) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "cuda_check: the driver finds no GPU.\n");
    return 2;
  }
  cudaDeviceProp properties;
  Require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0;
  Require(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::printf("%s; CUDA %d.%d, the driver's is %d.%d\n", properties.name, CUDART_VERSION / 1000,
              CUDART_VERSION % 1000 / 10, driver / 1000, driver % 1000 / 10);
  if (!WhyUnusable().empty()) {
    std::fprintf(stderr, "cuda_check: the kernels cannot run here: %s.\n", WhyUnusable().c_str());
    return 2;
  }
  FILE* csv = nullptr;
  if (!options.csv.empty()) {
    csv = std::fopen(options.csv.c_str(), "w");
    if (csv == nullptr) {
      std::fprintf(stderr, "cuda_check: cannot write %s\n", options.csv.c_str());
      return 2;
    }
    std::fputs("case,dtype,bytes,milliseconds,yardstick,yardstick_milliseconds,fraction\n", csv);
  }
  Stream stream;
  Require(cudaStreamCreate(&stream), "cudaStreamCreate");
  Totals totals;
  const auto wants = [&](const char* dtype) { return options.dtype.empty() || options.dtype == dtype; };
  ForEachType([&](const char* dtype, auto element) {
    if (!options.times_only && wants(dtype)) CheckAll<decltype(element)>(dtype, options, stream, &totals);
  });
  std::printf("\n| case | dtype | MiB | ms | GB/s | yardstick | fraction |\n|---|---|---|---|---|---|---|\n");
  ForEachType([&](const char* dtype, auto element) {
    if (wants(dtype)) TimeAll<decltype(element)>(dtype, options, stream, csv, &totals);
  });
  Require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  if (csv != nullptr) std::fclose(csv);
  std::printf("\n%lld results checked, %lld wrong.\n", static_cast<long long>(totals.checked),
              static_cast<long long>(totals.wrong));
  if (totals.timed > 0) {
    std::printf("From %lld MiB up %lld of %lld cases reach %.2f of their yardstick; the slowest has %.3f (%s).\n",
                static_cast<long long>(kTargetBytes >> 20), static_cast<long long>(totals.timed - totals.missed),
                static_cast<long long>(totals.timed), kTarget, totals.worst_fraction, totals.worst.c_str());
  }
  if (totals.checked == 0 && !options.times_only) {
    std::fprintf(stderr, "cuda_check: no case has '%s' in its name and the dtype '%s'.\n", options.only.c_str(),
                 options.dtype.empty() ? "any" : options.dtype.c_str());
    return 2;
  }
  return totals.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tf_cg_ops::cuda::check

int main(int argc, char** argv) {
  tf_cg_ops::cuda::check::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--times") {
      options.times_only = true;
    } else if (argument == "--dtype" && i + 1 < argc) {
      options.dtype = argv[++i];
    } else if (argument == "--csv" && i + 1 < argc) {
      options.csv = argv[++i];
    } else if (argument == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(
          stderr,
          "cuda_check: unknown argument %s. Pass --quick (small sizes, timed once), --only TEXT (cases whose "
          "names have it), --dtype DTYPE (only float32, say), --times (compare nothing) or --csv FILE (where to "
          "write times for programs).\n",
          argv[i]);
      return 2;
    }
  }
  return tf_cg_ops::cuda::check::Main(options);
}
