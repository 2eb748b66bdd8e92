#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/process/timer.h"

namespace aludel {

// A few threads for work that a client can make long: reading megabytes, tokenizing them, compiling schemas.
// It does not hold the threads that answer other requests, and does not outlast its own: a task stops at
// its deadline, when its client goes, and at shutdown. The queue is bounded. Thread-safe.
class WorkPool {
 public:
  struct Options {
    std::string name;  // in messages: "tokenizing"
    int threads = 2;
    size_t max_queue = 256;  // waiting tasks; beyond: Unavailable
  };

  class Task {
   public:
    // Ends the task early; the first reason counts. A task that runs sees it at its next CheckStop(); the job
    // of one that waits is called here and now.
    void Stop(absl::Status reason);
    // Moves the deadline, a time of MonotonicNow(), forward. A later one changes nothing.
    void Tighten(absl::Time deadline);
    // Why it shall end; OK while it may go on.
    absl::Status stopped() const;

   private:
    friend class WorkPool;
    enum class State { kNew, kQueued, kRunning, kDone };
    struct Shared;
    Task(std::shared_ptr<Shared> shared, std::function<void(Task&)> job)
        : shared_(std::move(shared)), job_(std::move(job)) {}

    const std::shared_ptr<Shared> shared_;
    std::weak_ptr<Task> self_;
    std::stop_source source_;
    // Guarded by the pool's mutex.
    std::function<void(Task&)> job_;
    State state_ = State::kNew;
    absl::Status stopped_;
    absl::Time stopped_at_ = absl::InfiniteFuture();
    absl::Time deadline_ = absl::InfiniteFuture();
    Timer::Id timer_id_ = 0;
  };
  // Called exactly once: on a thread of the pool, within a StopScope of the task's; or, where task.stopped()
  // is not OK, by the thread that stopped it, and then it shall only tell its client.
  using Job = std::function<void(Task&)>;

  explicit WorkPool(Options options);
  ~WorkPool();  // Shutdown

  // Two steps, so that what stops a task can be in place before it runs.
  std::shared_ptr<Task> Make(absl::Time deadline, Job job);
  void Start(const std::shared_ptr<Task>& task);

  // Stops what runs and what waits (Unavailable), and returns when no job runs any more. Idempotent.
  void Shutdown();
  Timer& timer() { return timer_; }

  // For how long a thread has gone on with a task that was to stop.
  absl::Duration Silence() const;

 private:
  void Run();

  const Options options_;
  Timer timer_;
  const std::shared_ptr<Task::Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace aludel
