#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace aludel {

// Something that happens once and that others wait for. Not absl::Notification: ThreadSanitizer cannot look
// into Debian's Abseil, and would report every order that one makes as a race.
class Event {
 public:
  void Notify() {
    std::lock_guard<std::mutex> lock(mutex_);
    happened_ = true;
    condition_.notify_all();
  }
  // False if it has not happened by then.
  bool WaitFor(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return condition_.wait_for(lock, timeout, [this] { return happened_; });
  }
  bool Wait() { return WaitFor(std::chrono::seconds(10)); }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool happened_ = false;
};

}  // namespace aludel
