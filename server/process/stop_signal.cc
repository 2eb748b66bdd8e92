#include "server/process/stop_signal.h"

#include <atomic>
#include <csignal>
#include <string>

#include <unistd.h>

#include "kernels/check.h"
#include "server/process/service_manager.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

// A SIGHUP is Ask's: of all signals it is the one that a stop under way ignores.
std::atomic<bool> asked = false;

void Notify(const char* state) {
  if (const absl::Status status = NotifyServiceManager(state); !status.ok()) {
    spdlog::warn("{}", std::string(status.message()));
  }
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t set = StopSet();
  ALUDEL_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  std::signal(SIGPIPE, SIG_IGN);
}

const char* StopSignal::Wait() {
  Notify("READY=1");
  const sigset_t set = StopSet();
  int signal = 0;
  do {
    ALUDEL_CHECK(sigwait(&set, &signal) == 0);
    if (signal == SIGHUP && !asked && on_hangup_) on_hangup_();
  } while (signal == SIGHUP && !asked);
  Notify("STOPPING=1");
  std::signal(SIGHUP, SIG_IGN);  // there is nothing to reload any more
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  ALUDEL_CHECK(pthread_sigmask(SIG_UNBLOCK, &set, nullptr) == 0);
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "asked by itself";
}

void StopSignal::Ask() {
  asked = true;
  kill(getpid(), SIGHUP);
}

}  // namespace aludel
