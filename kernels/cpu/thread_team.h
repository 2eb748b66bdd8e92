#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/cpu/team_pressure.h"

namespace aludel::cpu {

// The threads of one device. A forward pass is hundreds of short parallel loops, so handing one over has to
// cost less than a microsecond: workers spin for a moment after a loop before they sleep. Servers that share
// cores must not wait for each other's threads either, so tasks are claimed one by one, and a loop ends when
// its tasks have: a worker that the kernel keeps off its core is not waited for unless it has claimed one.
// Every thread begins with a stretch of tasks of its own, in order, so that what it reads from memory is one
// stream; then it helps others with theirs. Where the workers do not get cores of their own, the caller does
// without them for a while (TeamPressure).
// Thread-safe: a loop that begins while another runs is done by its caller alone. Nested loops likewise.
class ThreadTeam {
 public:
  // `threads` counts the caller of Run: 1 makes no thread. Those it makes are pinned to all `cores` but the
  // first, one each, if there are any (as many as threads, all of them this process'; see core_list.h).
  explicit ThreadTeam(int threads, absl::Span<const int> cores = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return threads_; }

  // body(task) for every task of [0, tasks), each once; returns when all have ended.
  void Run(int64_t tasks, absl::FunctionRef<void(int64_t task)> body);

 private:
  using Body = absl::FunctionRef<void(int64_t)>;

  // A thread's stretch of the loop under way: the loop's number above, unclaimed tasks below. A claim is one
  // compare-and-swap, which fails if the loop that it was meant for is over.
  struct alignas(64) Stretch {
    std::atomic<uint64_t> open{0};
    int64_t end = 0;
  };

  // Runs one task of `stretch`, if one is left to claim.
  bool RunOne(Stretch& stretch);
  // Runs tasks, those of stretch `self` first, until there are none to claim.
  void RunAll(int self);
  void Work(int self);

  const int threads_;
  std::mutex busy_;        // held by the thread whose loop is under way
  TeamPressure pressure_;  // guarded by busy_
  // body_ and the stretches' ends are written only while nothing can be claimed there, and read only
  // by claimants.
  std::vector<Stretch> stretches_;  // [threads]
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> loops_{0};  // workers sleep on it
  std::atomic<bool> stop_{false};
  const Body* body_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace aludel::cpu
