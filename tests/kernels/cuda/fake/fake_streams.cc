#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/kernels/cuda/fake/fake_world.h"

// Streams, events and graphs as queues of closures.
namespace aludel::cuda::fake {
namespace {

Queue& QueueOf(cudaStream_t stream) {
  World& world = TheWorld();
  const auto found = world.streams.find(stream);
  if (found == world.streams.end()) Die("a stream that is no more, or was never made");
  return *found->second;
}

// Runs the first work of a stream; false where it has to wait for another's.
bool Step(Queue& queue) {
  Work& first = queue.work.front();
  if (first.awaited != nullptr && !first.awaited->done) return false;
  const Work work = std::move(first);
  queue.work.pop_front();
  if (work.run) work.run();
  if (work.reached != nullptr) {
    work.reached->done = true;
    work.reached->reached_us = TheWorld().clock_us;
  }
  return true;
}

// Lets any stream go on as far as a draw says and its order allows: a stream that forgot to wait is ahead.
void GoAhead() {
  World& world = TheWorld();
  if (world.random() % 4 != 0) return;
  auto at = world.streams.begin();
  std::advance(at, world.random() % world.streams.size());
  for (uint64_t steps = world.random() % 8; steps > 0 && !at->second->work.empty(); --steps) {
    if (!Step(*at->second)) return;
  }
}

template <typename Map, typename Handle>
auto& Find(Map& map, Handle handle, const char* what) {
  const auto found = map.find(handle);
  if (found == map.end()) Die(std::string(what) + " that is no more, or was never made");
  return found->second;
}

template <typename Handle>
Handle NewHandle() {
  static uintptr_t last = 0x1000;
  return reinterpret_cast<Handle>(last += 16);
}

}  // namespace

World& TheWorld() {
  // Never destroyed: other statics may still free memory.
  static World* const world = [] {
    auto* made = new World;
    const char* const seed = std::getenv("ALUDEL_FAKE_CUDA_SEED");
    made->seed = seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device{}();
    made->random.seed(made->seed);
    std::fprintf(stderr, "fake cuda: ALUDEL_FAKE_CUDA_SEED=%" PRIu64 "\n", made->seed);
    return made;
  }();
  return *world;
}

void Die(const std::string& what) {
  std::fprintf(stderr, "fake cuda: %s (ALUDEL_FAKE_CUDA_SEED=%" PRIu64 ")\n", what.c_str(), TheWorld().seed);
  std::abort();
}

void Enqueue(cudaStream_t stream, Work work, bool asked) {
  World& world = TheWorld();
  Queue& queue = QueueOf(stream);
  if (queue.capturing != nullptr) {
    if (work.awaited != nullptr || work.reached != nullptr)
      Die("an event in a capture: no code of ours means that");
    queue.capturing->nodes.push_back(std::move(work));
    return;
  }
  world.counts.enqueued += asked;
  queue.work.push_back(std::move(work));
  GoAhead();
}

void Drain(cudaStream_t stream, const std::shared_ptr<Mark>& mark) {
  Queue& queue = QueueOf(stream);
  while (mark == nullptr ? !queue.work.empty() : !mark->done) {
    if (queue.work.empty()) Die("an event that nothing of its stream reaches");
    if (Step(queue)) continue;
    const std::shared_ptr<Mark> awaited = queue.work.front().awaited;
    Drain(awaited->stream, awaited);
  }
}

void CountWait(cudaStream_t stream, const std::shared_ptr<Mark>& mark) {
  Counts& counts = TheWorld().counts;
  ++counts.waits;
  counts.stalls += mark == nullptr ? !QueueOf(stream).work.empty() : !mark->done;
}

bool IsCapturing(cudaStream_t stream) { return QueueOf(stream).capturing != nullptr; }

void CheckNotCapturing(const char* call) {
  for (const auto& [stream, queue] : TheWorld().streams) {
    if (queue->capturing != nullptr && queue->capturer == std::this_thread::get_id()) {
      Die(std::string(call) + " while the thread captures");
    }
  }
}

Counts counts() {
  const std::lock_guard lock(TheWorld().mutex);
  return TheWorld().counts;
}
void ResetCounts() {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().counts = {};
}
void CountOnly(bool count_only) {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().count_only = count_only;
}
void AddCost(const std::string& name, const Cost& cost) {
  Cost& sum = TheWorld().counts.costs[name];
  sum.bytes += cost.bytes;
  sum.flops += cost.flops;
}
void FailAtLaunch(int64_t launches_from_now, int error) {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().launches_left = launches_from_now;
  TheWorld().to_come = static_cast<cudaError_t>(error);
}
void FailAllocationsAbove(size_t bytes) {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().most_bytes = bytes;
}
void WithholdHeuristics(bool withhold) {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().no_heuristic = withhold;
}
void PretendCapability(int major, int minor) {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().capability_major = major;
  TheWorld().capability_minor = minor;
}
void OfferAlgorithms(std::vector<double> microseconds) {
  const std::lock_guard lock(TheWorld().mutex);
  TheWorld().algorithms = std::move(microseconds);
}
void Heal() {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  world.most_bytes = SIZE_MAX;
  world.launches_left = INT64_MAX;
  world.to_come = world.sticky = cudaSuccess;
  world.no_heuristic = false;
  world.capability_major = 9;
  world.capability_minor = 0;
  world.algorithms = {1.0};
}

}  // namespace aludel::cuda::fake

using namespace aludel::cuda::fake;  // NOLINT: this file is the runtime's

// Every call takes the lock, and returns an error that stays where one has come.
#define FAKE_ENTER()                                             \
  World& world = TheWorld();                                     \
  const std::lock_guard<std::recursive_mutex> lock(world.mutex); \
  if (world.sticky != cudaSuccess) return world.sticky

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  FAKE_ENTER();
  if (flags != cudaStreamNonBlocking) Die("a stream with a hidden order to the legacy one");
  *stream = NewHandle<cudaStream_t>();
  world.streams[*stream] = std::make_unique<Queue>();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  CheckNotCapturing("cudaStreamDestroy");
  if (world.sticky == cudaSuccess) Drain(stream, nullptr);
  world.streams.erase(stream);
  return world.sticky;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_ENTER();
  CheckNotCapturing("cudaStreamSynchronize");
  // Copies of the legacy stream have run when they return, and no stream of ours is ordered by it.
  if (stream == cudaStreamLegacy) {
    ++world.counts.waits;
    return cudaSuccess;
  }
  CountWait(stream, nullptr);
  Drain(stream, nullptr);
  return world.sticky;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  FAKE_ENTER();
  CheckNotCapturing("cudaStreamQuery");
  Queue& queue = *Find(world.streams, stream, "a stream");
  // A host that asks again and again is answered at last.
  if (!queue.work.empty() && world.random() % 4 == 0) Drain(stream, nullptr);
  return queue.work.empty() ? world.sticky : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  FAKE_ENTER();
  const Event& one = *Find(world.events, event, "an event");
  if (one.mark->recorded && !one.mark->done) Enqueue(stream, {"wait", nullptr, nullptr, one.mark}, false);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  FAKE_ENTER();
  *event = NewHandle<cudaEvent_t>();
  world.events[*event] = std::make_unique<Event>();
  world.events[*event]->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  Find(world.events, event, "an event");
  world.events.erase(event);
  return world.sticky;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAKE_ENTER();
  Event& one = *Find(world.events, event, "an event");
  one.mark = std::make_shared<Mark>(Mark{true, false, stream});
  Enqueue(stream, {"event", nullptr, one.mark, nullptr}, false);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAKE_ENTER();
  CheckNotCapturing("cudaEventSynchronize");
  const std::shared_ptr<Mark> mark = Find(world.events, event, "an event")->mark;
  if (!mark->recorded) return cudaSuccess;
  CountWait(mark->stream, mark);
  if (!mark->done) Drain(mark->stream, mark);
  return world.sticky;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_ENTER();
  CheckNotCapturing("cudaEventQuery");
  const std::shared_ptr<Mark> mark = Find(world.events, event, "an event")->mark;
  if (!mark->recorded || mark->done) return cudaSuccess;
  if (world.random() % 4 == 0) Drain(mark->stream, mark);
  return mark->done ? world.sticky : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  FAKE_ENTER();
  const Event &begin = *Find(world.events, from, "an event"), &end = *Find(world.events, to, "an event");
  if (!begin.timed || !end.timed || !begin.mark->recorded || !end.mark->recorded)
    return cudaErrorInvalidResourceHandle;
  if (!begin.mark->done || !end.mark->done) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((end.mark->reached_us - begin.mark->reached_us) / 1e3);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FAKE_ENTER();
  CheckNotCapturing("cudaStreamBeginCapture");
  if (mode != cudaStreamCaptureModeThreadLocal) Die("a capture that other threads' calls would break");
  Queue& queue = *Find(world.streams, stream, "a stream");
  queue.capturing = std::make_shared<Graph>();
  queue.capturer = std::this_thread::get_id();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FAKE_ENTER();
  Queue& queue = *Find(world.streams, stream, "a stream");
  if (queue.capturing == nullptr) Die("the end of a capture that was not begun");
  *graph = NewHandle<cudaGraph_t>();
  world.graphs[*graph] = std::move(queue.capturing);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  FAKE_ENTER();
  *exec = NewHandle<cudaGraphExec_t>();
  world.execs[*exec] = Find(world.graphs, graph, "a graph");
  ++world.counts.captured;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  Find(world.graphs, graph, "a graph");
  world.graphs.erase(graph);
  return world.sticky;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  Find(world.execs, exec, "an instantiated graph");
  world.execs.erase(exec);
  return world.sticky;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FAKE_ENTER();
  const std::shared_ptr<Graph> graph = Find(world.execs, exec, "an instantiated graph");
  ++world.counts.graph_launches;
  for (const Work& node : graph->nodes) ++world.counts.launches[node.what];
  Enqueue(stream, {"graph",
                   [graph] {
                     for (const Work& node : graph->nodes) node.run();
                   },
                   nullptr, nullptr});
  return cudaSuccess;
}

}  // extern "C"
