#include "tests/testing/frozen_thread.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace aludel {

FrozenThread::FrozenThread(pid_t process, const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"))) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, comm);
    if (comm == name) thread_ = std::stoi(task.path().filename());
  }
  if (thread_ < 0) {
    why_ = absl::StrCat("process ", process, " has no thread ", name);
    return;
  }
  if (ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) {
    why_ = absl::StrCat("ptrace: ", std::strerror(errno));
    return;
  }
  ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr);
  frozen_ = waitpid(thread_, nullptr, __WALL) == thread_;
  if (!frozen_) why_ = absl::StrCat("waitpid: ", std::strerror(errno));
}

FrozenThread::~FrozenThread() {
  if (!frozen_) return;
  // Of a process that has ended, a traced thread is left over until its tracer has waited for it.
  if (ptrace(PTRACE_DETACH, thread_, nullptr, nullptr) != 0) waitpid(thread_, nullptr, __WALL);
}

}  // namespace aludel
