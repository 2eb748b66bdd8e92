#include "server/host/loading.h"

#include <unistd.h>

#include <memory>

#include "absl/time/time.h"
#include "runtime/tool/progress.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr absl::Duration kLogEvery = absl::Seconds(10);

}  // namespace

LoadProgress ReportLoading(const std::string& directory) {
  if (::isatty(STDERR_FILENO) == 1) {
    return [bar = std::make_shared<ProgressBar>()](int64_t done, int64_t total) {
      bar->Update("load, MB", done / kMegabyte, total / kMegabyte);
    };
  }
  return [directory, logged = MonotonicNow()](int64_t done, int64_t total) mutable {
    if (MonotonicNow() - logged < kLogEvery) return;
    logged = MonotonicNow();
    spdlog::info("loading {}: {} of {} MB", directory, done / kMegabyte, total / kMegabyte);
  };
}

}  // namespace aludel
