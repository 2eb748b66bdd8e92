#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "transport/command_queue.h"
#include "transport/ucx/ucx_node.h"

namespace aludel {

// The one thread that runs a UcxNode: posted commands, then whatever is due, then progress of UCX, and sleep
// until an event, a command or the next deadline.
class ProgressThread {
 public:
  static absl::StatusOr<std::unique_ptr<ProgressThread>> Start(std::unique_ptr<UcxNode> node);
  // Shuts the node down, within a few seconds even if UCX does not finish what it began, and joins.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  CommandQueue& commands() { return *commands_; }
  // See Transport::ProgressSilence.
  absl::Duration Silence();
  // Only inside commands.
  UcxNode& node() { return *node_; }

 private:
  ProgressThread(std::unique_ptr<UcxNode> node, std::unique_ptr<CommandQueue> commands);
  void Run();
  // Makes progress for a moment; true once something happened.
  bool ProgressPatiently();
  void Sleep(absl::Time until, bool watch_ucx);
  void SleepUnarmed(absl::Time until, int busy_rounds);

  const std::unique_ptr<UcxNode> node_;
  const std::unique_ptr<CommandQueue> commands_;
  bool stopping_ = false;           // progress thread only
  std::atomic<bool> asked_{false};  // and not answered
  std::atomic<int64_t> asked_at_ns_{0};
  std::thread thread_;
};

}  // namespace aludel
