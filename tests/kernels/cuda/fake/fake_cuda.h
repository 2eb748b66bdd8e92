#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

// A CUDA runtime and cuBLASLt for a machine without a GPU: linked in front of the toolkit's, so that the host code of
// kernels/cuda and everything above it runs as it is on "cuda:0". Kernels run as their own source on the host (simt.h);
// products that cuBLASLt is asked for are computed by a loop.
//
// Nothing runs when it is enqueued. A stream is a queue, and its work runs when the host waits for it, or earlier, at
// moments that a seed draws, as far as its own order and events allow: work that lacks an order meets operands that are
// not there yet, or no longer. Device memory is a mapping of its own for each allocation: it begins as NaN, ends with a
// page that nothing may touch, and is taken away when it is freed, so that a late use of it crashes. An allocation from a pool
// comes behind the latest free, unless the pool was told otherwise: then it takes other memory.
//
// The process ends with a message at what a GPU would refuse or let pass in silence: calls that are illegal while their
// thread captures, launches beyond the limits of compute capability 9.0 or of the kernel's own bounds, a kernel that has no
// body here, copies that leave an allocation or are not of the kind they say, products whose operands are not aligned as
// their plan was made for, pinned memory that the host writes while a copy is still to read it, memory that is freed twice,
// events, streams and graphs that are no more. It does not know which memory a kernel touches but by the crash, nor what a
// process leaves behind.
//
// Thread-safe: one lock is held over every call.
namespace aludel::cuda::fake {

// What one launch asks of a card at least: bytes of its memory, each operand once, and operations of its matrix products.
struct Cost {
  int64_t bytes = 0;
  int64_t flops = 0;
};

// Since the process began, or Reset.
struct Counts {
  std::map<std::string, int64_t> launches;  // by kernel ("Rope<float>"), and "cublasLtMatmul"
  int64_t early = 0;           // of those that have run, what may begin before the kernel in front has ended
  int64_t graph_launches = 0;  // whole graphs; their kernels count above, too
  int64_t captured = 0;        // graphs made
  int64_t copies = 0;
  int64_t copied_bytes = 0;  // between host and device, either way
  int64_t allocations = 0;   // of device memory
  int64_t waits = 0;         // calls that make the host wait for work
  int64_t stalls = 0;        // of them, those that there was work for
  // What the host asked for one by one: kernels and products outside graphs, copies, and graphs.
  int64_t enqueued = 0;

  // Products of cuBLASLt that have run, by the algorithm's place among those that it offers.
  std::map<int, int64_t> algorithms;

  // Of what has run, by kernel; those of the model's steps are known (fake_traffic.cc).
  std::map<std::string, Cost> costs;

  int64_t kernels() const {
    int64_t sum = 0;
    for (const auto& [name, count] : launches) sum += count;
    return sum;
  }
};
Counts counts();
void ResetCounts();

// From now on kernels, products and copies of more than a MiB are counted and not run, so that models of any size are; what
// memory holds says nothing then, but for what small copies have brought.
void CountOnly(bool count_only);

// Errors to come. All are as the runtime has them: a sticky one is returned by every call from then on.
void FailAtLaunch(int64_t launches_from_now, int error);
void FailAllocationsAbove(size_t bytes);  // cudaErrorMemoryAllocation; SIZE_MAX: none
void WithholdHeuristics(bool withhold);   // cuBLASLt finds no algorithm
// What devices opened from now on are, instead of 9.0; that alone, and what cuBLASLt has on it for E4M3.
void PretendCapability(int major, int minor);
// What cuBLASLt offers for each product from now on, the first first: how long each takes, in microseconds that pass between
// events (nothing else takes any); of less than 0: it cannot be run after all. One of 1 us at first.
void OfferAlgorithms(std::vector<double> microseconds);
// Ends what the above began, sticky errors too; no device may be open.
void Heal();

// A kernel: takes what a launch points at and returns what a block's threads do, given shared memory.
using Body = std::function<void(char* shared)>;
struct Kernel {
  std::function<Body(void** arguments)> bind;
  size_t static_shared_bytes = 0;
  int most_threads = 1024;  // its launch bounds
  bool alone = false;       // its threads never meet: no barrier, no shuffle
};
// By the name that it is launched under, without namespaces of ours.
const Kernel* FindKernel(const std::string& name);
struct Extent {
  unsigned x, y, z;
};
// What a launch of it costs, once the work before it has run; null where that is not known.
std::function<Cost()> CostOf(const std::string& kernel, void** arguments, Extent grid);
// Runs it on simt.h, the order of warps drawn from `seed`; `shared_bytes` beside its own. How many of its threads have called
// AwaitEarlier.
uint64_t RunKernel(const Kernel& kernel, Extent grid, Extent block, size_t shared_bytes, uint64_t seed,
                   const Body& body);

}  // namespace aludel::cuda::fake
