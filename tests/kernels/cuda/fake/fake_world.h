#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/kernels/cuda/fake/fake_cuda.h"

// What the fake's own files share.
namespace aludel::cuda::fake {

// A point of a stream: the work before it. `done` when that has run.
struct Mark {
  bool recorded = false;
  bool done = true;
  cudaStream_t stream = nullptr;  // whose queue holds it
  double reached_us = 0;          // when it was done
};

struct Work {
  std::string what;
  std::function<void()> run;      // null: a mark alone
  std::shared_ptr<Mark> reached;  // becomes done here
  std::shared_ptr<Mark> awaited;  // not before this is done
};

struct Graph {
  std::vector<Work> nodes;
};

struct Queue {
  std::deque<Work> work;
  std::shared_ptr<Graph> capturing;
  std::thread::id capturer;
};

struct Event {
  bool timed = false;
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

struct Allocation {
  size_t bytes;
  char* mapping;
  size_t mapped;
  bool host = false;
  bool pooled = false;  // of the one pool
};

// Everything behind one lock.
struct World {
  std::recursive_mutex mutex;
  uint64_t seed = 0;  // what `random` began with
  std::mt19937_64 random;
  std::map<cudaStream_t, std::unique_ptr<Queue>> streams;
  std::map<cudaEvent_t, std::unique_ptr<Event>> events;
  std::map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
  std::map<cudaGraphExec_t, std::shared_ptr<Graph>> execs;
  std::map<const char*, Allocation> allocations;
  std::map<const char*, size_t> registered;     // host memory of cudaHostRegister
  std::map<const void*, std::string> kernels;   // by the host's function
  std::map<const void*, size_t> shared_limits;  // cudaFuncSetAttribute
  std::shared_ptr<Mark> freed;                  // of the latest cudaFreeAsync; null: there was none
  bool waits_for_frees = true;                  // cudaMemPoolReuseAllowInternalDependencies of the one pool
  size_t reserved = 0;  // by the pool: the most that it has had in use since it was trimmed
  Counts counts;
  size_t most_bytes = SIZE_MAX;
  int64_t launches_left = INT64_MAX;
  cudaError_t to_come = cudaSuccess;
  cudaError_t sticky = cudaSuccess;
  bool no_heuristic = false;
  int capability_major = 9, capability_minor = 0;
  std::vector<double> algorithms = {1.0};  // OfferAlgorithms
  double clock_us = 0;
  bool count_only = false;
};
World& TheWorld();

[[noreturn]] void Die(const std::string& what);

// Puts work behind what is on the stream, or into the graph that it captures. `asked`: the host's own call, which counts.
void Enqueue(cudaStream_t stream, Work work, bool asked = true);
// Runs what is on the stream, and what that waits for elsewhere, until `mark` is done; null: all of it.
void Drain(cudaStream_t stream, const std::shared_ptr<Mark>& mark);
// Counts a launch and says what it returns.
cudaError_t CountLaunch(const std::string& name);

// Of what runs now.
void AddCost(const std::string& name, const Cost& cost);

// Counts a call that waits until `mark` of the stream is done; null: for all of the stream.
void CountWait(cudaStream_t stream, const std::shared_ptr<Mark>& mark);

// Whether what is enqueued goes into a graph.
bool IsCapturing(cudaStream_t stream);
// Of the calling thread's captures: dies where one is under way.
void CheckNotCapturing(const char* call);
// Dies unless device or pinned memory holds [data, data + bytes); returns whether it is the device's.
bool IsDeviceRange(const void* data, size_t bytes, const char* call);

}  // namespace aludel::cuda::fake
