#include "server/gateway/access/traffic_capture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

constexpr size_t kMaxWaiting = 64;  // prompts; a disk that hangs holds no more

}  // namespace

TrafficCapture::TrafficCapture(Options options, Metrics* metrics)
    : options_(std::move(options)),
      prompts_(
          metrics->Counter("aludel_captured_prompts_total",
                           "Prompts that were to be captured for calibration, by what became of them.")) {
  if (options_.file.empty()) return;
  writer_.emplace(WorkPool::Options{.name = "the capture file", .threads = 1, .max_queue = kMaxWaiting});
  for (const char* outcome : {"written", "full", "failed"}) prompts_.Add({{"outcome", outcome}}, 0);
}

void TrafficCapture::Take(const std::string& model, const std::vector<int32_t>& ids) {
  if (options_.file.empty()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (!absl::Bernoulli(random_, options_.share)) return;
  }
  writer_->Start(writer_->Make(absl::InfiniteFuture(), [this, model, ids](WorkPool::Task& task) {
    absl::StatusOr<bool> written = false;
    if (const absl::Status stopped = task.stopped(); stopped.ok()) {
      const nlohmann::ordered_json line = {{"model", model}, {"ids", ids}};
      written = Append(absl::StrCat(line.dump(), "\n"));
    } else {
      written = stopped;
    }
    Count(!written.ok() ? "failed" : *written ? "written" : "full");
    if (!written.ok() && fault_lines_.Take()) {
      spdlog::warn("a prompt was not captured: {}", std::string(written.status().message()));
    }
  }));
}

absl::Status TrafficCapture::Check() const {
  return options_.file.empty() ? absl::OkStatus() : Append("").status();
}

absl::StatusOr<bool> TrafficCapture::Append(absl::string_view line) const {
  const auto fault = [&](const char* what) {
    return absl::ErrnoToStatus(errno, absl::StrCat("capture.file ", options_.file, ": cannot ", what));
  };
  const int file = open(options_.file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (file < 0) return fault("be opened");
  const absl::Cleanup close_it = [file] { close(file); };
  struct stat about = {};
  if (fstat(file, &about) != 0) return fault("be looked at");
  if (!S_ISREG(about.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("capture.file ", options_.file, " is no regular file"));
  }
  if (about.st_size + static_cast<int64_t>(line.size()) > options_.max_bytes) return false;
  const ssize_t wrote = write(file, line.data(), line.size());
  if (wrote == static_cast<ssize_t>(line.size())) return true;
  const absl::Status failed =
      wrote < 0 ? fault("be written")
                : absl::ResourceExhaustedError(absl::StrCat(options_.file, ": no room for a line"));
  // No part of a line stays: readers would refuse the file.
  if (wrote > 0 && ftruncate(file, about.st_size) != 0) return fault("be cut to whole lines");
  return failed;
}

}  // namespace aludel
