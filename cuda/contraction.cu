#include <cuda_runtime.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "cuda/arithmetic.cuh"
#include "cuda/contraction.h"
#include "cuda/multiply.cuh"
#include "cuda/schedule.h"
#include "cuda/sums.cuh"

namespace tf_cg_ops::cuda {

// Definitions of this file are static instead of in an unnamed namespace, which nvcc names by the folder.

// Far more blocks than any GPU runs at once. Kernels loop over the remaining work.
static constexpr int64_t kMaxBlocks = 1 << 16;

static std::string Message(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // Clears the error, which the next call could report again.
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

// The operands and the output of a launch, on the device.
template <typename T>
struct Memory {
  const Element<T>* lhs;
  const Element<T>* rhs;
  Element<T>* out;
};

template <typename T, bool rhs_moves>
static std::string LaunchFlat(const Schedule& schedule, const Memory<T>& memory, Stream stream) {
  const int64_t size = schedule.layout.outputs;
  std::string error;
  for (int64_t begin = 0; begin < size && error.empty(); begin += kMaxFlatElements) {
    const int64_t count = std::min(size - begin, kMaxFlatElements);
    error = Launch(stream, BlocksForItems(count / kVectorSize<T>), MultiplyFlatKernel<T, rhs_moves>, memory.lhs + begin,
                   memory.rhs + (rhs_moves ? begin : 0), memory.out + begin, static_cast<uint32_t>(count),
                   schedule.layout.conjugates);
  }
  return error;
}

template <typename T>
static std::string LaunchMultiply(const Schedule& schedule, const Memory<T>& memory, Stream stream) {
  const auto launch = [&](auto kernel, const auto& layout) {
    return Launch(stream, schedule.blocks, kernel, layout, memory.lhs, memory.rhs, memory.out);
  };
  if (!schedule.has_narrow_indices) return launch(MultiplyScalarKernel<T, int64_t>, schedule.layout);
  const Layout<uint32_t> layout = Narrowed(schedule.layout);
  const bool rhs_moves = schedule.rhs_moves;
  // An element of 16 bytes is always a whole vector.
  if constexpr (kVectorSize<T> > 1) {
    if (schedule.kernel == Kernel::kMultiplySegments) {
      return launch(rhs_moves ? MultiplySegmentsKernel<T, true> : MultiplySegmentsKernel<T, false>, layout);
    }
    if (schedule.kernel == Kernel::kMultiplyScalar) return launch(MultiplyScalarKernel<T, uint32_t>, layout);
  }
  return launch(rhs_moves ? MultiplyRowsKernel<T, true> : MultiplyRowsKernel<T, false>, layout);
}

template <typename T, typename Reader>
static std::string LaunchSumWith(const Schedule& schedule, const Layout<typename Reader::Index>& layout,
                                 const Memory<T>& memory, Sum<T>* sums, Stream stream) {
  const auto kernel = schedule.kernel == Kernel::kSumRows ? SumRowsKernel<T, Reader> : SumColumnsKernel<T, Reader>;
  return Launch(stream, schedule.blocks, kernel, layout, memory.lhs, memory.rhs, memory.out, sums);
}

template <typename T>
static std::string LaunchVectorizedSum(const Schedule& schedule, const Memory<T>& memory, Sum<T>* sums, Stream stream) {
  const Layout<uint32_t> layout = Narrowed(schedule.layout);
  if (schedule.rhs_moves) {
    return schedule.has_one_loop
               ? LaunchSumWith<T, VectorReader<T, true, true>>(schedule, layout, memory, sums, stream)
               : LaunchSumWith<T, VectorReader<T, true, false>>(schedule, layout, memory, sums, stream);
  }
  return schedule.has_one_loop
             ? LaunchSumWith<T, VectorReader<T, false, true>>(schedule, layout, memory, sums, stream)
             : LaunchSumWith<T, VectorReader<T, false, false>>(schedule, layout, memory, sums, stream);
}

// Computes the sums, or the parts of each.
template <typename T>
static std::string LaunchParts(const Schedule& schedule, const Memory<T>& memory, Sum<T>* sums, Stream stream) {
  const Layout<int64_t>& layout = schedule.layout;
  if (!schedule.has_narrow_indices) {
    return LaunchSumWith<T, ScalarReader<T, int64_t>>(schedule, layout, memory, sums, stream);
  }
  // An element of 16 bytes is always a whole vector.
  if constexpr (kVectorSize<T> > 1) {
    if (!schedule.is_vectorized) {
      return LaunchSumWith<T, ScalarReader<T, uint32_t>>(schedule, Narrowed(layout), memory, sums, stream);
    }
  }
  return LaunchVectorizedSum<T>(schedule, memory, sums, stream);
}

template <typename T>
static std::string LaunchSum(const Schedule& schedule, const Memory<T>& memory, void* scratch, Stream stream) {
  const Layout<int64_t>& layout = schedule.layout;
  auto* const sums = static_cast<Sum<T>*>(scratch);
  const std::string error = LaunchParts<T>(schedule, memory, sums, stream);
  if (!error.empty() || layout.parts == 1) return error;
  // Neighboring threads have neighboring outputs. The more parts an output has, the more threads share them.
  int lanes = 1;
  while (lanes < std::min<int64_t>(layout.outputs, layout.parts > 64 ? 4 : 32)) lanes *= 2;
  const int64_t tiles = (layout.outputs + lanes - 1) / lanes;
  return Launch(stream, tiles, AddPartsKernel<T>, static_cast<const Sum<T>*>(sums), layout.outputs, layout.parts, lanes,
                memory.out);
}

// The compute capabilities with compiled code, as 750 for 7.5, in ascending order.
static constexpr int kCompiled[] = {__CUDA_ARCH_LIST__};

// "7.5" for 750 with a major unit of 100; "12.9" for 12090 with a major unit of 1000.
static std::string Version(int number, int major_unit) {
  return std::to_string(number / major_unit) + "." + std::to_string(number % major_unit / 10);
}

static std::string NoCodeFor(int device, int capability) {
  std::string compiled;
  for (const int architecture : kCompiled) compiled += Version(architecture, 100) + ", ";
  return "GPU " + std::to_string(device) + " has compute capability " + Version(capability, 100) +
         ", but the library has code for " + compiled + "and newer";
}

// The reason why a GPU cannot run the compiled code; empty if it can.
static std::string WhyUnusableOn(int device, int driver) {
  int major = 0, minor = 0, is_integrated = 0;
  for (const auto& [attribute, value] :
       {std::pair(cudaDevAttrComputeCapabilityMajor, &major), std::pair(cudaDevAttrComputeCapabilityMinor, &minor),
        std::pair(cudaDevAttrIntegrated, &is_integrated)}) {
    const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
    if (error != cudaSuccess) return Message("read an attribute of a GPU", error);
  }
  const int here = major * 100 + minor * 10;
  for (const int compiled : kCompiled) {
    // Code for an older GPU of the same major version runs, except on integrated GPUs.
    if (compiled == here || (compiled / 100 == major && compiled <= here && !is_integrated)) return "";
  }
  // The newest code is also there as PTX, which a driver for the same or a newer CUDA compiles for newer GPUs.
  if (here < *std::max_element(std::begin(kCompiled), std::end(kCompiled))) return NoCodeFor(device, here);
  if (driver >= CUDART_VERSION) return "";
  return "GPU " + std::to_string(device) + " needs a driver for CUDA " + Version(CUDART_VERSION, 1000) +
         " or newer, which translates code for it, but the driver is for CUDA " + Version(driver, 1000);
}

static std::string ExamineGpus() {
  // The runtime is linked statically and finds the driver at run time; without a driver the version is 0.
  int driver = 0, devices = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "there is no NVIDIA driver";
  // A driver runs code of every toolkit of its major version.
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return "the driver is for CUDA " + Version(driver, 1000) + ", but the library was built with nvcc " +
           Version(CUDART_VERSION, 1000) + " and needs a driver for CUDA " + std::to_string(CUDART_VERSION / 1000) +
           " or newer";
  }
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();  // Clears the error, which the next call could report again.
    return "the driver shows no GPU to this process";
  }
  std::string why;
  for (int device = 0; device < devices && why.empty(); ++device) why = WhyUnusableOn(device, driver);
  return why;
}

const std::string& WhyUnusable() {
  static const auto* const why = new std::string(ExamineGpus());
  return *why;
}

template <typename T>
int64_t ScratchBytes(const ContractionPlan& plan) {
  const Schedule schedule = MakeSchedule(plan, sizeof(T), /*conjugate=*/false, nullptr, nullptr, nullptr);
  return schedule.layout.parts > 1 ? schedule.layout.parts * plan.output_size * sizeof(Sum<T>) : 0;
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
      return Message("fill memory with zeros", cudaMemsetAsync(out, 0, plan.output_size * sizeof(T), stream));
    case Kernel::kMultiplyFlat:
      return schedule.rhs_moves ? LaunchFlat<T, true>(schedule, memory, stream)
                                : LaunchFlat<T, false>(schedule, memory, stream);
    case Kernel::kMultiplyRows:
    case Kernel::kMultiplySegments:
    case Kernel::kMultiplyScalar:
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
  template std::string Contract<T>(const ContractionPlan&, bool, const T*, const T*, T*, void*, Stream);
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops::cuda
