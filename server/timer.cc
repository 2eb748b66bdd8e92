#include "server/timer.h"

#include "absl/time/clock.h"

namespace aludel {

Timer::Timer() : thread_([this] { Run(); }) {}

Timer::~Timer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

Timer::Id Timer::At(absl::Time when, std::function<void()> callback) {
  absl::MutexLock lock(&mutex_);
  const Id id = next_id_++;
  queue_.emplace(std::make_pair(when, id), std::move(callback));
  times_.emplace(id, when);
  if (queue_.begin()->first.second == id) changed_.SignalAll();
  return id;
}

void Timer::Cancel(Id id) {
  std::function<void()> callback;  // may own what calls us on its way out: dies after the lock
  absl::MutexLock lock(&mutex_);
  const auto time = times_.find(id);
  if (time == times_.end()) return;
  const auto entry = queue_.find({time->second, id});
  callback = std::move(entry->second);
  queue_.erase(entry);
  times_.erase(time);
}

void Timer::CancelAndWait(Id id) {
  Cancel(id);
  absl::MutexLock lock(&mutex_);
  while (running_ == id) changed_.Wait(&mutex_);
}

void Timer::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (queue_.empty()) {
      changed_.Wait(&mutex_);
      continue;
    }
    const auto first = queue_.begin();
    if (absl::Now() < first->first.first) {
      changed_.WaitWithDeadline(&mutex_, first->first.first);
      continue;
    }
    std::function<void()> callback = std::move(first->second);
    running_ = first->first.second;
    times_.erase(running_);
    queue_.erase(first);
    mutex_.Unlock();
    callback();
    callback = nullptr;
    mutex_.Lock();
    running_ = 0;
    changed_.SignalAll();
  }
}

}  // namespace aludel
