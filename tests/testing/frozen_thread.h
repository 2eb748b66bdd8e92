#pragma once

#include <sys/types.h>

#include <string>

namespace aludel {

// One thread of a child process, held still by ptrace while this lives: what a thread looks like that hangs
// in a lock, a driver or a loop, without a hook in the code that is tested. Made and destroyed by one thread.
class FrozenThread {
 public:
  // `name` as in /proc/PID/task/*/comm.
  FrozenThread(pid_t process, const std::string& name);
  ~FrozenThread();
  FrozenThread(const FrozenThread&) = delete;
  FrozenThread& operator=(const FrozenThread&) = delete;

  // False, with errno's text in why(), where there is no such thread or the machine forbids ptrace.
  bool ok() const { return frozen_; }
  const std::string& why() const { return why_; }

 private:
  pid_t thread_ = -1;
  bool frozen_ = false;
  std::string why_;
};

}  // namespace aludel
