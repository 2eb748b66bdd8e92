#include "server/process/timer.h"

#include <algorithm>
#include <chrono>

#include "transport/monotonic_clock.h"

namespace aludel {

Timer::Timer() : thread_([this] { Run(); }) {}

Timer::~Timer() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Timer::Id Timer::At(absl::Time when, std::function<void()> callback) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Id id = next_id_++;
  queue_.emplace(std::make_pair(when, id), std::move(callback));
  times_.emplace(id, when);
  if (queue_.begin()->first.second == id) changed_.notify_all();
  return id;
}

void Timer::Cancel(Id id) {
  std::function<void()> callback;  // may own what calls us on its way out: dies after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto time = times_.find(id);
  if (time == times_.end()) return;
  const auto entry = queue_.find({time->second, id});
  callback = std::move(entry->second);
  queue_.erase(entry);
  times_.erase(time);
}

void Timer::CancelAndWait(Id id) {
  Cancel(id);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return running_ != id; });
}

void Timer::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (queue_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = queue_.begin();
    const absl::Duration wait = first->first.first - MonotonicNow();
    if (wait > absl::ZeroDuration()) {
      // On the steady clock; absl's condition variables wait on the one that can be set.
      changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(wait, absl::Hours(1))));
      continue;
    }
    std::function<void()> callback = std::move(first->second);
    running_ = first->first.second;
    times_.erase(running_);
    queue_.erase(first);
    lock.unlock();
    callback();
    callback = nullptr;
    lock.lock();
    running_ = 0;
    changed_.notify_all();
  }
}

}  // namespace aludel
