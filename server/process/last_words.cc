#include "server/process/last_words.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

std::string Reason() {
  const std::exception_ptr error = std::current_exception();
  if (error == nullptr) return "std::terminate was called";
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of memory: an allocation failed. Look at ulimit -v, at the memory limit of the container or "
           "service, "
           "and at what the model and its cache need (engine { kv_bytes })";
  } catch (const std::system_error& failed) {
    if (failed.code().value() != EAGAIN) return failed.what();
    return "a thread cannot be started: look at ulimit -u and -v, and at the pids limit of the container or "
           "service";
  } catch (const std::exception& other) {
    return absl::StrCat("unexpected error: ", other.what());
  } catch (...) {
    return "unexpected error";
  }
}

[[noreturn]] void End() noexcept {
  // The log may have no reader, and there may be no thread to start.
  std::signal(SIGALRM, [](int) { ::_exit(1); });
  ::alarm(1);
  try {
    spdlog::critical("{}", Reason());
    spdlog::default_logger_raw()->flush();
  } catch (...) {
    // There may be no memory for a log line.
    static constexpr char kNoMemory[] = "out of memory\n";
    if (::write(STDERR_FILENO, kNoMemory, sizeof(kNoMemory) - 1) < 0) std::_Exit(1);
  }
  std::_Exit(1);
}

}  // namespace

void GiveReasonWhenEnded() {
  std::set_terminate(End);
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  spdlog::warn(
      "the address space is limited to {} MB (ulimit -v): where that is too little, libraries end the "
      "process. Limit "
      "memory by a container or service instead",
      limit.rlim_cur >> 20);
}

}  // namespace aludel
