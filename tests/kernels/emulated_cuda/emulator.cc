#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

struct CUevent_st {
  std::chrono::steady_clock::time_point when;
};

namespace emulated_cuda {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Fiber {
  ucontext_t context;
  State state;
  uint64_t exchanged;
};

std::vector<Fiber> fibers;
ucontext_t scheduler;
const std::function<void()>* running_body = nullptr;
std::mt19937_64 random_numbers;
uint64_t order = 0;
unsigned most_blocks = ~0u;

Fiber& This() { return fibers[threadIdx.x]; }

// Runs the body of a thread, once for each block.
void RunFiber() {
  while (true) {
    (*running_body)();
    Fiber& fiber = This();
    fiber.state = State::kDone;
    swapcontext(&fiber.context, &scheduler);
  }
}

void Wait(State state) {
  Fiber& fiber = This();
  fiber.state = state;
  swapcontext(&fiber.context, &scheduler);
}

// Releases the threads [begin, end) if all of them wait in that state. On a GPU, threads that have ended do not count;
// here that is an error.
bool Release(unsigned begin, unsigned end, State state) {
  for (unsigned i = begin; i < end; ++i) {
    if (fibers[i].state != state) return false;
  }
  for (unsigned i = begin; i < end; ++i) fibers[i].state = State::kReady;
  return true;
}

std::vector<unsigned> InOrder(unsigned count) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == 1) std::reverse(numbers.begin(), numbers.end());
  if (order > 1) std::shuffle(numbers.begin(), numbers.end(), random_numbers);
  return numbers;
}

void RunBlock(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) fibers[i].state = State::kReady;
  while (true) {
    for (const unsigned i : InOrder(threads)) {
      if (fibers[i].state != State::kReady) continue;
      threadIdx = dim3(i, 0, 0);
      swapcontext(&scheduler, &fibers[i].context);
    }
    if (std::all_of(fibers.begin(), fibers.begin() + threads, [](auto& f) { return f.state == State::kDone; })) return;
    bool some_go_on = Release(0, threads, State::kAtBlockBarrier);
    for (unsigned i = 0; i < threads; i += kWarp) {
      some_go_on |= Release(i, std::min(i + kWarp, threads), State::kAtWarpBarrier);
    }
    if (!some_go_on) {
      std::fputs("emulated CUDA: some threads wait at a barrier that others never reach\n", stderr);
      std::abort();
    }
  }
}

void MakeFibers(unsigned threads) {
  while (fibers.size() < threads) fibers.push_back({});
  static unsigned made = 0;
  for (; made < threads; ++made) {
    Fiber& fiber = fibers[made];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, RunFiber, 0);
  }
}

}  // namespace

cudaError_t RunGrid(dim3 grid, dim3 block, const std::function<void()>& body) {
  if (grid.x == 0 || grid.x > 0x7fffffffu || block.x == 0 || block.x > 1024) return cudaErrorInvalidConfiguration;
  // Reserves memory for all fibers, since a context must not move after it has run.
  fibers.reserve(1024);
  MakeFibers(block.x);
  running_body = &body;
  blockDim = block;
  gridDim = dim3(std::min(grid.x, most_blocks));
  for (const unsigned i : InOrder(gridDim.x)) {
    blockIdx = dim3(i, 0, 0);
    RunBlock(block.x);
  }
  return cudaSuccess;
}

void BlockBarrier() { Wait(State::kAtBlockBarrier); }

uint64_t ExchangeInWarp(uint64_t value, int mask) {
  This().exchanged = value;
  Wait(State::kAtWarpBarrier);
  const uint64_t other = fibers[threadIdx.x ^ static_cast<unsigned>(mask)].exchanged;
  // No thread can write its next value before all have read this one.
  Wait(State::kAtWarpBarrier);
  return other;
}

void SetOrder(uint64_t seed, unsigned max_blocks) {
  order = seed;
  random_numbers.seed(seed);
  most_blocks = max_blocks;
}

}  // namespace emulated_cuda

namespace {

// A property of the emulated GPU, which an environment variable can override.
int Setting(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

}  // namespace

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const int capability = Setting("EMULATED_CUDA_CAPABILITY", 90);
  switch (attribute) {
    case cudaDevAttrIntegrated:
      *value = Setting("EMULATED_CUDA_INTEGRATED", 0);
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = capability % 10;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Setting("EMULATED_CUDA_DRIVER", CUDART_VERSION);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Setting("EMULATED_CUDA_DEVICES", 1);
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulated on a CPU");
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMallocBytes(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 256) / 256 * 256);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void* memory, int byte, size_t bytes) {
  std::memset(memory, byte, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  return cudaMemset(memory, byte, bytes);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->when = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
  return cudaSuccess;
}
