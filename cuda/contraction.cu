#include <cuda_runtime.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <string>
#include <utility>

#include "cuda/arithmetic.cuh"
#include "cuda/contraction.h"
#include "cuda/multiply.cuh"
#include "cuda/schedule.h"
#include "cuda/sums.cuh"

namespace tf_cg_ops::cuda {

// What only this file uses is static and in no unnamed namespace: nvcc gives those a name that depends on the folder.

// More blocks than any GPU runs at once by far. Kernels go on where their blocks end.
static constexpr int64_t kMaxBlocks = 1 << 16;

static std::string Message(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // Else the next call could find it, too.
  return std::string("CUDA could not ") + what + ": " + cudaGetErrorString(error);
}

template <typename... Parameters, typename... Arguments>
static std::string Launch(Stream stream, int64_t blocks, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min(blocks, kMaxBlocks)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return Message("launch a kernel", cudaLaunchKernelEx(&config, kernel, arguments...));
}

// The operands and out of a launch, on the device.
template <typename T>
struct Memory {
  const Element<T>* lhs;
  const Element<T>* rhs;
  Element<T>* out;
};

template <typename T>
static std::string LaunchFlat(const Schedule& schedule, const Memory<T>& memory, Stream stream) {
  const auto kernel =
      schedule.rhs_moves ? schedule.is_in_packs ? MultiplyFlatKernel<T, true, true> : MultiplyFlatKernel<T, true, false>
      : schedule.is_in_packs ? MultiplyFlatKernel<T, false, true>
                             : MultiplyFlatKernel<T, false, false>;
  const int64_t size = schedule.layout.outputs;
  std::string error;
  for (int64_t begin = 0; begin < size && error.empty(); begin += kMaxFlatElements) {
    const int64_t count = std::min(size - begin, kMaxFlatElements);
    error = Launch(stream, BlocksForItems(count / kPack<T>), kernel, memory.lhs + begin,
                   memory.rhs + (schedule.rhs_moves ? begin : 0), memory.out + begin, static_cast<uint32_t>(count),
                   schedule.layout.conjugates);
  }
  return error;
}

template <typename T>
static std::string LaunchMultiply(const Schedule& schedule, const Memory<T>& memory, Stream stream) {
  if (!schedule.has_narrow_indices) {
    return Launch(stream, schedule.blocks, MultiplySinglyKernel<T, int64_t>, schedule.layout, memory.lhs, memory.rhs,
                  memory.out);
  }
  const auto kernel = !schedule.is_in_packs ? MultiplySinglyKernel<T, uint32_t>
                      : schedule.rhs_moves  ? MultiplyRowsKernel<T, true>
                                            : MultiplyRowsKernel<T, false>;
  return Launch(stream, schedule.blocks, kernel, Narrowed(schedule.layout), memory.lhs, memory.rhs, memory.out);
}

template <typename T, typename Reader>
static std::string LaunchSumBy(const Schedule& schedule, const Layout<typename Reader::Index>& layout,
                               const Memory<T>& memory, Sum<T>* sums, Stream stream) {
  const auto kernel = schedule.kernel == Kernel::kSumRows ? SumRowsKernel<T, Reader> : SumColumnsKernel<T, Reader>;
  return Launch(stream, schedule.blocks, kernel, layout, memory.lhs, memory.rhs, memory.out, sums);
}

template <typename T>
static std::string LaunchSumInPacks(const Schedule& schedule, const Memory<T>& memory, Sum<T>* sums, Stream stream) {
  const Layout<uint32_t> layout = Narrowed(schedule.layout);
  if (schedule.rhs_moves) {
    return schedule.has_one_loop ? LaunchSumBy<T, InPacks<T, true, true>>(schedule, layout, memory, sums, stream)
                                 : LaunchSumBy<T, InPacks<T, true, false>>(schedule, layout, memory, sums, stream);
  }
  return schedule.has_one_loop ? LaunchSumBy<T, InPacks<T, false, true>>(schedule, layout, memory, sums, stream)
                               : LaunchSumBy<T, InPacks<T, false, false>>(schedule, layout, memory, sums, stream);
}

template <typename T>
static std::string LaunchSum(const Schedule& schedule, const Memory<T>& memory, void* scratch, Stream stream) {
  const Layout<int64_t>& layout = schedule.layout;
  auto* const sums = static_cast<Sum<T>*>(scratch);
  const std::string error = schedule.is_in_packs && schedule.has_narrow_indices
                                ? LaunchSumInPacks<T>(schedule, memory, sums, stream)
                                : LaunchSumBy<T, Singly<T>>(schedule, layout, memory, sums, stream);
  if (!error.empty() || layout.parts == 1) return error;
  // Threads side by side take neighbouring outputs. The more parts, the more threads share those of one output.
  int lanes = 1;
  while (lanes < std::min<int64_t>(layout.outputs, layout.parts > 64 ? 4 : 32)) lanes *= 2;
  const int64_t tiles = (layout.outputs + lanes - 1) / lanes;
  return Launch(stream, tiles, AddPartsKernel<T>, static_cast<const Sum<T>*>(sums), layout.outputs, layout.parts, lanes,
                memory.out);
}

// Whether a GPU runs what was compiled: code of its own generation that is not newer, or, since the newest code is
// there in a form that the driver can still translate, anything newer than all of them.
static bool HasCodeFor(int device) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return false;
  }
  int is_integrated = 0;
  if (cudaDeviceGetAttribute(&is_integrated, cudaDevAttrIntegrated, device) != cudaSuccess) return false;
  // As 750 for 7.5.
  constexpr int kCompiled[] = {__CUDA_ARCH_LIST__};
  const int here = major * 100 + minor * 10;
  int newest = 0;
  for (const int compiled : kCompiled) {
    // Code of a generation's first GPU runs on its others, but for those that are a part of a processor.
    if (compiled == here || (compiled / 100 == major && compiled <= here && !is_integrated)) return true;
    newest = std::max(newest, compiled);
  }
  return here >= newest;
}

static bool LookForGpus() {
  // The runtime is linked statically and finds the driver by itself; without one the version is 0.
  int driver = 0, devices = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver < CUDART_VERSION) return false;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();
    return false;
  }
  for (int device = 0; device < devices; ++device) {
    if (!HasCodeFor(device)) return false;
  }
  return true;
}

bool Runs() {
  static const bool runs = LookForGpus();
  return runs;
}

template <typename T>
int64_t ScratchBytes(const ContractionPlan& plan) {
  const Schedule schedule = MakeSchedule(plan, sizeof(T), /*conjugate=*/false, nullptr, nullptr, nullptr);
  return schedule.layout.parts > 1 ? schedule.layout.parts * plan.kept_size * sizeof(Sum<T>) : 0;
}

template <typename T>
std::string Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out, void* scratch,
                     Stream stream) {
  const Schedule schedule = MakeSchedule(plan, sizeof(T), conjugate, lhs, rhs, out);
  if (schedule.swaps_operands) std::swap(lhs, rhs);
  const Memory<T> memory = {reinterpret_cast<const Element<T>*>(lhs), reinterpret_cast<const Element<T>*>(rhs),
                            reinterpret_cast<Element<T>*>(out)};
  switch (schedule.kernel) {
    case Kernel::kNone:
      return "";
    case Kernel::kZero:
      return Message("fill memory with zeros", cudaMemsetAsync(out, 0, plan.kept_size * sizeof(T), stream));
    case Kernel::kMultiplyFlat:
      return LaunchFlat<T>(schedule, memory, stream);
    case Kernel::kMultiply:
      return LaunchMultiply<T>(schedule, memory, stream);
    case Kernel::kSumRows:
    case Kernel::kSumColumns:
      return LaunchSum<T>(schedule, memory, scratch, stream);
    case Kernel::kTooManyLoops:
      return "a contraction of more than 2^" + std::to_string(kMaxLoops) + " products cannot be computed";
  }
  return "there is no kernel for the plan";
}

#define INSTANTIATE(T)                                      \
  template int64_t ScratchBytes<T>(const ContractionPlan&); \
  template std::string Contract<T>(const ContractionPlan&, bool, const T*, const T*, T*, void*, Stream)
INSTANTIATE(Half);
INSTANTIATE(BFloat16);
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(std::complex<float>);
INSTANTIATE(std::complex<double>);
#undef INSTANTIATE

}  // namespace tf_cg_ops::cuda
