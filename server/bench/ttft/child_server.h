#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aludel {

// A TCP port of this machine that has no listener at this moment, below the ephemeral ones, so that no
// outgoing connection takes it before its server does; another one at each call. 0 where there is none.
int FreePort();

// A server program as a child process, with its configuration and log as NAME.textproto and NAME.log in a
// folder of the caller. In a process group of its own: Ctrl-C reaches this process, which ends its children
// in order; where this process dies, the kernel ends them. One thread; the thread that started it must
// outlive it.
class ChildServer {
 public:
  // NotFound where `program` cannot be run.
  static absl::StatusOr<std::unique_ptr<ChildServer>> Start(const std::string& program,
                                                            const std::string& folder,
                                                            const std::string& name,
                                                            const std::string& config);
  // Terminates and waits for the end; after five seconds kills.
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  // Unavailable, with the end of its log, where it has ended.
  absl::Status Check();
  // Asks it to end, and does not wait.
  void Terminate();
  pid_t pid() const { return pid_; }

 private:
  ChildServer(pid_t pid, std::string name, std::string log)
      : pid_(pid), name_(std::move(name)), log_(std::move(log)) {}
  // Whether it has ended, which takes its exit status away.
  bool HasEnded();

  const pid_t pid_;
  const std::string name_;
  const std::string log_;  // path
  bool ended_ = false;
  int exit_status_ = 0;
};

}  // namespace aludel
