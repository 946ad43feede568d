// The part of CUDA that the kernels and their check program use, emulated on the CPU, so that tests run the kernels
// without a GPU. Replaces the toolkit's header with this name.
//
// The threads of a block take turns, and switch only at barriers and shuffles. A seed sets the order of blocks and
// threads, so a race because of a missing barrier gives different results for different seeds.

#ifndef TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_RUNTIME_H_
#define TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __CUDA_ARCH_LIST__ 750, 800, 900
#define CUDART_VERSION 13010

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaDeviceAttr {
  cudaDevAttrIntegrated = 18,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};

struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

struct cudaDeviceProp {
  char name[256];
};

// The indices of the running thread.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated_cuda {

// Runs the body once for each thread of each block.
cudaError_t RunGrid(dim3 grid, dim3 block, const std::function<void()>& body);

// Waits for all threads of the block.
void BlockBarrier();

// Returns the value of the thread whose lane differs in the bits of `mask`. All threads of the warp call it.
uint64_t ExchangeInWarp(uint64_t value, int mask);

// Sets the order of blocks and threads in later launches, and the largest grid. Kernels loop over their work, so a
// smaller grid does not change results.
void SetOrder(uint64_t seed, unsigned max_blocks);

}  // namespace emulated_cuda

inline void __syncthreads() { emulated_cuda::BlockBarrier(); }
inline void __syncwarp() { emulated_cuda::ExchangeInWarp(0, 0); }

template <typename R>
R __shfl_xor_sync(unsigned, R value, int mask) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(R));
  bits = emulated_cuda::ExchangeInWarp(bits, mask);
  std::memcpy(&value, &bits, sizeof(R));
  return value;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  // The size of their constant memory.
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "too many parameters");
  return emulated_cuda::RunGrid(config->gridDim, config->blockDim,
                                [&] { kernel(static_cast<Parameters>(arguments)...); });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaFree(void* memory);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaMallocBytes(void** memory, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  return cudaMallocBytes(reinterpret_cast<void**>(memory), bytes);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset(void* memory, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

#endif  // TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_RUNTIME_H_
