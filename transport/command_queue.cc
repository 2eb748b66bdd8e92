#include "transport/command_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<CommandQueue>> CommandQueue::Open() {
  const int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd < 0) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  return std::unique_ptr<CommandQueue>(new CommandQueue(event_fd));
}

CommandQueue::~CommandQueue() { close(event_fd_); }

bool CommandQueue::TryPost(Command& command) {
  absl::MutexLock lock(&mutex_);
  if (commands_.size() >= kMaxCommands) return false;
  PushAndWake(std::move(command));
  return true;
}

void CommandQueue::Post(Command command) {
  absl::MutexLock lock(&mutex_);
  PushAndWake(std::move(command));
}

void CommandQueue::PushAndWake(Command command) {
  commands_.push_back(std::move(command));
  // One wake-up is enough for all that wait: the eventfd stays readable until TakeAll.
  if (commands_.size() == 1) eventfd_write(event_fd_, 1);
}

std::vector<CommandQueue::Command> CommandQueue::TakeAll() {
  absl::MutexLock lock(&mutex_);
  if (commands_.empty()) return {};
  eventfd_t count;
  eventfd_read(event_fd_, &count);
  return std::exchange(commands_, {});
}

}  // namespace aludel
