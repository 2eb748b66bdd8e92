#include "runtime/tool/progress.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace aludel {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

void OnStopSignal(int signal) {
  stop_asked = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

ProgressBar::ProgressBar() : terminal_(::isatty(STDERR_FILENO) == 1) {}
ProgressBar::~ProgressBar() { Break(); }

void ProgressBar::Break() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

void ProgressBar::Update(absl::string_view stage, int64_t done, int64_t total, absl::string_view detail) {
  const absl::Time now = absl::Now();
  const bool fresh = stage != stage_;
  if (fresh) {
    Break();
    stage_ = std::string(stage);
    stage_start_ = now;
  }
  const bool ends = done >= total;
  const absl::Duration pause = terminal_ ? absl::Milliseconds(100) : absl::Seconds(10);
  if (!fresh && !ends && now - drawn_ < pause) return;
  drawn_ = now;
  const std::string tail = detail.empty() ? "" : absl::StrFormat("; %s", detail);
  const double seconds = absl::ToDoubleSeconds(now - stage_start_);
  if (!terminal_) {
    std::fputs(absl::StrFormat("%s: %d/%d, %.0f s%s\n", stage, done, total, seconds, tail).c_str(), stderr);
  } else {
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(kWidth * std::min(done, total) / std::max<int64_t>(1, total));
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    const std::string left =
        done > 0 && !ends ? absl::StrFormat(", %.0f s left", seconds * static_cast<double>(total - done) /
                                                                 static_cast<double>(done))
                          : "";
    std::fputs(
        absl::StrFormat("\r\x1b[K%-32s [%s] %d/%d, %.0f s%s%s", stage, bar, done, total, seconds, left, tail)
            .c_str(),
        stderr);
    open_ = true;
  }
  if (ends) {
    Break();
    stage_.clear();
  }
  std::fflush(stderr);
}

void StopOnSignals() {
  std::signal(SIGINT, OnStopSignal);
  std::signal(SIGTERM, OnStopSignal);
}

bool StopAsked() { return stop_asked != 0; }

}  // namespace aludel
