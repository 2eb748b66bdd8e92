#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>

#include "tests/kernels/cuda/fake/fake_world.h"

// Device and pinned memory, and copies.
namespace aludel::cuda::fake {
namespace {

constexpr size_t kDeviceBytes = size_t{8} << 30;  // what the card says that it has
constexpr size_t kAlignment = 256;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Whether a copy of so many bytes is made.
bool IsMade(size_t bytes) { return !TheWorld().count_only || bytes <= size_t{1} << 20; }

// Ends with the page before one that nothing may touch, but for what keeps it aligned.
cudaError_t Map(void** data, size_t bytes, bool host) {
  World& world = TheWorld();
  const size_t page = sysconf(_SC_PAGESIZE);
  const size_t mapped = RoundUp(std::max<size_t>(bytes, 1), page) + page;
  auto* const mapping = static_cast<char*>(
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
  if (mprotect(mapping + mapped - page, page, PROT_NONE) != 0) Die("a guard page cannot be made");
  char* const begin = mapping + mapped - page - RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  // Large ones are mostly scratch: poisoning all of it would cost more than what tests run.
  if (!host) std::memset(begin, 0xff, std::min<size_t>(bytes, size_t{4} << 20));
  world.allocations[begin] = {bytes, mapping, mapped, host};
  *data = begin;
  return cudaSuccess;
}

// Of the card's memory: in the pool, or outside of it.
size_t Used(bool pooled) {
  size_t used = 0;
  for (const auto& [begin, one] : TheWorld().allocations) {
    used += !one.host && one.pooled == pooled ? one.bytes : 0;
  }
  return used;
}

// What others cannot have: the pool keeps what was freed.
size_t Taken() { return Used(/*pooled=*/false) + TheWorld().reserved; }

cudaError_t Allocate(void** data, size_t bytes, bool pooled = false) {
  World& world = TheWorld();
  CheckNotCapturing("an allocation");
  // Where memory is short, the pool gives up what it keeps.
  if (bytes > world.most_bytes || Used(false) + Used(true) + bytes > kDeviceBytes) {
    return cudaErrorMemoryAllocation;
  }
  ++world.counts.allocations;
  const cudaError_t error = Map(data, bytes, /*host=*/false);
  if (error == cudaSuccess && pooled) {
    world.allocations[static_cast<const char*>(*data)].pooled = true;
    world.reserved = std::max(world.reserved, Used(true));
  }
  return error;
}

// Nothing may touch it any more: the addresses are not given out again.
void Unmap(const void* data) {
  World& world = TheWorld();
  const auto found = world.allocations.find(static_cast<const char*>(data));
  if (found == world.allocations.end()) Die("freed memory that was not allocated, or twice");
  const Allocation& one = found->second;
  if (mmap(one.mapping, one.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    Die("memory cannot be taken away");
  }
  world.allocations.erase(found);
}

void DrainAll() {
  World& world = TheWorld();
  if (world.sticky != cudaSuccess) return;
  std::vector<cudaStream_t> all;
  for (const auto& [stream, queue] : world.streams) all.push_back(stream);
  for (const cudaStream_t stream : all) Drain(stream, nullptr);
}

}  // namespace

bool IsDeviceRange(const void* data, size_t bytes, const char* call) {
  const World& world = TheWorld();
  const char* const begin = static_cast<const char*>(data);
  auto after = world.allocations.upper_bound(begin);
  if (after == world.allocations.begin()) return false;
  --after;
  const auto& [from, one] = *after;
  if (begin >= one.mapping + one.mapped) return false;
  if (begin + bytes > from + one.bytes)
    Die(std::string(call) + " leaves an allocation of " + std::to_string(one.bytes));
  return !one.host;
}

namespace {

void CheckCopy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = IsDeviceRange(to, bytes, "a copy's target");
  const bool from_device = IsDeviceRange(from, bytes, "a copy's source");
  const bool wanted_to = kind != cudaMemcpyDeviceToHost, wanted_from = kind != cudaMemcpyHostToDevice;
  if (to_device != wanted_to || from_device != wanted_from)
    Die("a copy whose kind is not that of its addresses");
}

size_t HashOf(const void* data, size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
}

bool IsPinned(const void* data, size_t bytes) {
  const World& world = TheWorld();
  const char* const begin = static_cast<const char*>(data);
  const auto holds = [&](const char* from, size_t size) {
    return begin >= from && begin + bytes <= from + size;
  };
  for (const auto& [from, one] : world.allocations) {
    if (one.host && holds(from, one.bytes)) return true;
  }
  return std::any_of(world.registered.begin(), world.registered.end(),
                     [&](const auto& one) { return holds(one.first, one.second); });
}

}  // namespace
}  // namespace aludel::cuda::fake

using namespace aludel::cuda::fake;  // NOLINT: this file is the runtime's

#define FAKE_ENTER()                                             \
  World& world = TheWorld();                                     \
  const std::lock_guard<std::recursive_mutex> lock(world.mutex); \
  if (world.sticky != cudaSuccess) return world.sticky

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  FAKE_ENTER();
  return Allocate(data, bytes);
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  FAKE_ENTER();
  return Allocate(data, bytes);
}
cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t, cudaStream_t stream) {
  FAKE_ENTER();
  const bool waits = world.waits_for_frees && world.freed != nullptr && !world.freed->done;
  if (waits) Enqueue(stream, {"allocation", nullptr, nullptr, world.freed}, false);
  return Allocate(data, bytes, /*pooled=*/true);
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  FAKE_ENTER();
  CheckNotCapturing("cudaMallocHost");
  return Map(data, bytes, /*host=*/true);
}

// Waits for everything, as CUDA's does.
cudaError_t cudaFree(void* data) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  if (data == nullptr) return world.sticky;
  CheckNotCapturing("cudaFree");
  DrainAll();
  Unmap(data);
  return world.sticky;
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  if (world.sticky != cudaSuccess) {
    Unmap(data);
    return world.sticky;
  }
  world.freed = std::make_shared<Mark>(Mark{true, false, stream});
  Enqueue(stream, {"free", [data] { Unmap(data); }, world.freed, nullptr}, false);
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  FAKE_ENTER();
  *pool = reinterpret_cast<cudaMemPool_t>(uintptr_t{0x100});
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  FAKE_ENTER();
  if (attribute == cudaMemPoolReuseAllowInternalDependencies) {
    world.waits_for_frees = *static_cast<int*>(value) != 0;
  }
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  FAKE_ENTER();
  world.reserved = Used(/*pooled=*/true);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) {
  TheWorld().reserved = Used(/*pooled=*/true);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  *total = kDeviceBytes;
  *free = kDeviceBytes - std::min(Taken(), kDeviceBytes);
  return world.sticky;
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  FAKE_ENTER();
  if (!world.registered.emplace(static_cast<const char*>(data), bytes).second) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  FAKE_ENTER();
  DrainAll();
  return world.registered.erase(static_cast<const char*>(data)) == 1 ? cudaSuccess
                                                                     : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  FAKE_ENTER();
  *attributes = {};
  attributes->type = IsDeviceRange(data, 1, "a pointer") ? cudaMemoryTypeDevice
                     : IsPinned(data, 1)                 ? cudaMemoryTypeHost
                                                         : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

// On the legacy stream, which streams of ours do not wait for: it runs at once.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  FAKE_ENTER();
  CheckNotCapturing("cudaMemcpy");
  CheckCopy(to, from, bytes, kind);
  ++world.counts.copies;
  ++world.counts.enqueued;
  if (kind != cudaMemcpyDeviceToDevice) world.counts.copied_bytes += bytes;
  if (IsMade(bytes)) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  FAKE_ENTER();
  CheckCopy(to, from, bytes, kind);
  ++world.counts.copies;
  if (kind != cudaMemcpyDeviceToDevice) world.counts.copied_bytes += bytes;
  if (kind == cudaMemcpyHostToDevice && IsMade(bytes) && !IsPinned(from, bytes)) {
    // Pageable memory is read before the call returns, and what came before it on the stream keeps its place.
    const auto staged = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
    Enqueue(stream, {"copy", [=] { std::memcpy(to, staged->data(), bytes); }, nullptr, nullptr});
    return cudaSuccess;
  }
  // Pinned memory is read when the copy runs. One in a graph may find other bytes at each of its launches.
  const bool reads_host = kind == cudaMemcpyHostToDevice && IsMade(bytes) && !IsCapturing(stream);
  const size_t held = reads_host ? HashOf(from, bytes) : 0;
  Enqueue(stream, {"copy",
                   [=] {
                     CheckCopy(to, from, bytes, kind);
                     if (reads_host && HashOf(from, bytes) != held) {
                       Die("the host has written what a copy was still to read");
                     }
                     if (IsMade(bytes)) std::memmove(to, from, bytes);
                   },
                   nullptr, nullptr});
  // To pageable memory it is there when the call returns.
  if (kind == cudaMemcpyDeviceToHost && !IsPinned(to, bytes)) {
    CheckNotCapturing("a copy to pageable memory");
    CountWait(stream, nullptr);
    Drain(stream, nullptr);
  }
  return cudaSuccess;
}

}  // extern "C"
