#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace aludel {

// Runs callbacks when their time of MonotonicNow() has come, on one thread of its own: deadlines fire by the
// clock alone, with or without other work, and setting the wall clock moves none. Thread-safe. Callbacks must
// be short and may call At and Cancel.
class Timer {
 public:
  using Id = uint64_t;  // never 0

  Timer();
  // Joins the thread; what has not started never runs.
  ~Timer();

  Id At(absl::Time when, std::function<void()> callback);
  // Removes a callback that has not started; unknown ids are ignored. Does not wait for one that runs.
  void Cancel(Id id);
  // The same, and when it returns the callback is not running either. Not from a callback, and not under a
  // lock that the callback takes.
  void CancelAndWait(Id id);

 private:
  void Run();

  std::mutex mutex_;                 // not absl's, whose timed waits follow the clock that can be set
  std::condition_variable changed_;  // of what mutex_ guards:
  bool stopping_ = false;
  Id next_id_ = 1;
  Id running_ = 0;
  std::map<std::pair<absl::Time, Id>, std::function<void()>> queue_;
  std::map<Id, absl::Time> times_;
  std::thread thread_;
};

}  // namespace aludel
