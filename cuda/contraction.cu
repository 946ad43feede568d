#include <cuda_runtime.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <string>

#include "cuda/arithmetic.cuh"
#include "cuda/contraction.h"
#include "cuda/kernels.cuh"
#include "cuda/schedule.h"

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

template <typename T>
static std::string LaunchSum(const Schedule& schedule, const Element<T>* lhs, const Element<T>* rhs, Element<T>* out,
                             void* scratch, Stream stream) {
  const auto kernel = schedule.kernel == Kernel::kSumRows ? SumRowsKernel<T> : SumColumnsKernel<T>;
  const Layout& layout = schedule.layout;
  auto* const sums = static_cast<Sum<T>*>(scratch);
  const std::string error = Launch(stream, schedule.blocks, kernel, layout, lhs, rhs, out, sums);
  if (!error.empty() || layout.parts == 1) return error;
  // Threads side by side take neighbouring outputs. The more parts, the more threads share those of one output.
  int lanes = 1;
  while (lanes < std::min<int64_t>(layout.outputs, layout.parts > 64 ? 4 : 32)) lanes *= 2;
  const int64_t tiles = (layout.outputs + lanes - 1) / lanes;
  return Launch(stream, tiles, AddPartsKernel<T>, static_cast<const Sum<T>*>(sums), layout.outputs, layout.parts, lanes,
                out);
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
  const auto* const l = reinterpret_cast<const Element<T>*>(lhs);
  const auto* const r = reinterpret_cast<const Element<T>*>(rhs);
  auto* const o = reinterpret_cast<Element<T>*>(out);
  const Schedule schedule = MakeSchedule(plan, sizeof(T), conjugate, lhs, rhs, out);
  switch (schedule.kernel) {
    case Kernel::kNone:
      return "";
    case Kernel::kZero:
      return Message("fill memory with zeros", cudaMemsetAsync(out, 0, plan.kept_size * sizeof(T), stream));
    case Kernel::kMultiply:
      return Launch(stream, schedule.blocks, MultiplyKernel<T, kPack<T>>, schedule.layout, l, r, o);
    case Kernel::kMultiplySingly:
      return Launch(stream, schedule.blocks, MultiplyKernel<T, 1>, schedule.layout, l, r, o);
    case Kernel::kSumRows:
    case Kernel::kSumColumns:
      return LaunchSum<T>(schedule, l, r, o, scratch, stream);
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
