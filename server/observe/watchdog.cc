#include "server/observe/watchdog.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/process/service_manager.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

absl::Status Silent(const std::string& what, absl::Duration silence) {
  return absl::UnavailableError(absl::StrCat(what, " has made no progress for ",
                                             absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1)))));
}

}  // namespace

Watchdog::Watchdog(std::vector<Check> checks, absl::Duration limit, Timer* timer)
    : checks_(std::move(checks)), limit_(limit), timer_(timer), looked_(MonotonicNow()) {
  Look();
}

Watchdog::~Watchdog() { Stop(); }

void Watchdog::Stop() {
  Timer::Id next = 0;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    next = next_;
  }
  timer_->CancelAndWait(next);
}

absl::Status Watchdog::status() const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration blind = MonotonicNow() - looked_;
  return blind > limit_ + kInterval ? Silent("the timer", blind) : status_;
}

void Watchdog::Look() {
  absl::Status found;
  for (const Check& check : checks_) {
    const absl::Duration silence = check.silence();
    if (found.ok() && silence > limit_) found = Silent(check.what, silence);
  }
  // One that was not sent is missed by the service manager, which then restarts the process: no news is the news.
  if (found.ok()) NotifyServiceManager("WATCHDOG=1").IgnoreError();
  absl::MutexLock lock(&mutex_);
  if (found.ok() != status_.ok()) {
    spdlog::log(found.ok() ? spdlog::level::info : spdlog::level::err, "watchdog: {}",
                found.ok() ? "all threads make progress again" : std::string(found.message()));
  }
  status_ = found;
  looked_ = MonotonicNow();
  if (!stopping_) next_ = timer_->At(looked_ + kInterval, [this] { Look(); });
}

}  // namespace aludel
