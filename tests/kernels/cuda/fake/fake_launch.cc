#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/kernels/cuda/fake/fake_world.h"
#include "tests/kernels/cuda/fake/kernel_name.h"

// What nvcc's launches become, and the device itself.
namespace aludel::cuda::fake {
namespace {

constexpr size_t kSharedBytes = 48 << 10;       // without cudaFuncSetAttribute
constexpr size_t kMostSharedBytes = 227 << 10;  // of compute capability 9.0
constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostBlocksYz = 65535;
constexpr int kMultiprocessors = 4;  // few, so that small problems are split

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local Configuration configuration;
thread_local cudaError_t last = cudaSuccess;

// By the function that names it: launches come with one of ours, or with a handle, which is the same here.
const std::string& NameOf(const void* function) {
  const auto found = TheWorld().kernels.find(function);
  if (found == TheWorld().kernels.end()) Die("a kernel that was not registered");
  return found->second;
}

void CheckLimits(const std::string& name, const void* function, const Kernel& kernel, const dim3& grid,
                 const dim3& block, size_t shared) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0) Die(name + ": an empty launch");
  if (grid.x > INT32_MAX || grid.y > kMostBlocksYz || grid.z > kMostBlocksYz) Die(name + ": too many blocks");
  if (threads > kMostThreads || threads > static_cast<uint64_t>(kernel.most_threads)) {
    Die(name + ": " + std::to_string(threads) + " threads");
  }
  // Without asking, a kernel has what its own leaves of the first; what it asks for is beside its own.
  const auto asked = TheWorld().shared_limits.find(function);
  const size_t own = kernel.static_shared_bytes;
  const size_t allowed = std::max(asked == TheWorld().shared_limits.end() ? 0 : asked->second,
                                  kSharedBytes - std::min(own, kSharedBytes));
  if (shared > allowed || own + allowed > kMostSharedBytes) {
    Die(name + ": " + std::to_string(shared) + " bytes of shared memory beside " +
        std::to_string(kernel.static_shared_bytes) + ", " + std::to_string(allowed) + " allowed");
  }
}

// `behind`: it may begin before the kernel in front of it has ended.
cudaError_t Launch(const void* function, const dim3& grid, const dim3& block, void** arguments, size_t shared,
                   cudaStream_t stream, bool behind = false) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  const std::string& name = NameOf(function);
  if (world.sticky != cudaSuccess) return last = world.sticky;
  const Kernel* const kernel = FindKernel(name);
  if (kernel == nullptr) Die(name + " has no body here: fake_kernels.cc wants one");
  CheckLimits(name, function, *kernel, grid, block, shared);
  if (const cudaError_t error = CountLaunch(name); error != cudaSuccess) {
    return last = error;
  }
  const Extent blocks{grid.x, grid.y, grid.z}, threads{block.x, block.y, block.z};
  Enqueue(stream,
          {name,
           [name, cost = CostOf(name, arguments, blocks), body = kernel->bind(arguments), kernel, blocks,
            threads, shared, behind] {
             if (behind) ++TheWorld().counts.early;
             if (cost != nullptr) AddCost(name, cost());
             if (TheWorld().count_only) return;
             const uint64_t awaits = RunKernel(*kernel, blocks, threads, shared, TheWorld().random(), body);
             // Blocks without work may end; the others wait with all their threads.
             if (behind && (awaits == 0 || awaits % (threads.x * threads.y * threads.z) != 0)) {
               Die(name + " may begin before the kernel in front of it has ended, and does not await it");
             }
           },
           nullptr, nullptr});
  return cudaSuccess;
}

}  // namespace

cudaError_t CountLaunch(const std::string& name) {
  World& world = TheWorld();
  // A launch into a graph is counted when the graph is.
  bool captured = false;
  for (const auto& [stream, queue] : world.streams) {
    captured = captured || (queue->capturing != nullptr && queue->capturer == std::this_thread::get_id());
  }
  if (!captured) ++world.counts.launches[name];
  if (world.launches_left != INT64_MAX && world.launches_left-- <= 0) {
    world.launches_left = INT64_MAX;
    world.sticky = world.to_come;
    // What was enqueued is lost with the context.
    for (auto& [stream, queue] : world.streams) queue->work.clear();
    return world.sticky;
  }
  return cudaSuccess;
}

}  // namespace aludel::cuda::fake

using namespace aludel::cuda::fake;  // NOLINT: this file is the runtime's

#define FAKE_ENTER()                                             \
  World& world = TheWorld();                                     \
  const std::lock_guard<std::recursive_mutex> lock(world.mutex); \
  if (world.sticky != cudaSuccess) return world.sticky

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  int status = 0;
  char* const demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  world.kernels[function] = KernelName(demangled != nullptr ? demangled : name);
  std::free(demangled);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return Launch(kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return Launch(function, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  bool behind = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization)
      return cudaErrorInvalidValue;
    behind = config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
  }
  return Launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                config->stream, behind);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  FAKE_ENTER();
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<size_t>(value) > kMostSharedBytes) return cudaErrorInvalidValue;
    world.shared_limits[function] = value;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_ENTER();
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  FAKE_ENTER();
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  FAKE_ENTER();
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "no card at all");
  properties->major = world.capability_major;
  properties->minor = world.capability_minor;
  properties->multiProcessorCount = kMultiprocessors;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  FAKE_ENTER();
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  FAKE_ENTER();
  if (attribute == cudaDevAttrComputeCapabilityMajor) {
    *value = world.capability_major;
    return cudaSuccess;
  }
  if (attribute == cudaDevAttrComputeCapabilityMinor) {
    *value = world.capability_minor;
    return cudaSuccess;
  }
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = kMultiprocessors;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  if (world.sticky != cudaSuccess) return world.sticky;
  return std::exchange(last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                          : "an error of the fake runtime";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaError";
}

}  // extern "C"
