#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace aludel {

// Carries work from any thread to the progress thread and wakes it through an eventfd. Bounded for sends;
// connects and closes always get in, they are at most one for each thread that waits for their end.
class CommandQueue {
 public:
  using Command = absl::AnyInvocable<void()>;
  static constexpr size_t kMaxCommands = 65536;

  static absl::StatusOr<std::unique_ptr<CommandQueue>> Open();
  ~CommandQueue();
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  // False when the queue is full; `command` is untouched then.
  bool TryPost(Command& command) ABSL_LOCKS_EXCLUDED(mutex_);
  void Post(Command command) ABSL_LOCKS_EXCLUDED(mutex_);

  // For the progress thread: everything posted so far, in order. Clears the wake-up.
  std::vector<Command> TakeAll() ABSL_LOCKS_EXCLUDED(mutex_);

  // Readable while commands wait.
  int event_fd() const { return event_fd_; }

 private:
  explicit CommandQueue(int event_fd) : event_fd_(event_fd) {}
  void PushAndWake(Command command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int event_fd_;
  absl::Mutex mutex_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
