#include "server/process/reloader.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// What changes when a file is written, replaced or, in a mounted secret, its link is pointed elsewhere.
std::string Fingerprint(const std::vector<std::string>& files) {
  std::string fingerprint;
  for (const std::string& file : files) {
    struct stat info = {};
    if (stat(file.c_str(), &info) != 0) {
      absl::StrAppend(&fingerprint, "missing;");
    } else {
      absl::StrAppend(&fingerprint, info.st_ino, ",", info.st_size, ",", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec, ";");
    }
  }
  return fingerprint;
}

}  // namespace

Reloader::Reloader(std::vector<Watched> watched, absl::Duration interval, std::function<void()> tend)
    : watched_(std::move(watched)), interval_(interval), tend_(std::move(tend)) {
  thread_ = std::thread([this] { Loop(); });
}

Reloader::~Reloader() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Reloader::Poke() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    poked_ = true;
  }
  wake_.notify_one();
}

void Reloader::Loop() {
  std::vector<std::string> seen;
  for (const Watched& one : watched_) seen.push_back(Fingerprint(one.files));
  while (true) {
    bool poked = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait_for(lock, absl::ToChronoNanoseconds(interval_), [this] { return poked_ || stopping_; });
      if (stopping_) return;
      poked = std::exchange(poked_, false);
    }
    for (size_t i = 0; i < watched_.size(); ++i) {
      // Taken before the reload: a change during it shows next time.
      std::string now = Fingerprint(watched_[i].files);
      if (!poked && now == seen[i]) continue;
      seen[i] = std::move(now);
      const absl::Status status = watched_[i].reload();
      if (!watched_[i].logs) continue;
      const std::string files = absl::StrJoin(watched_[i].files, ", ");
      if (status.ok()) {
        spdlog::info("reloaded {}", files);
      } else {
        spdlog::error("not reloaded, the old state stays: {}", std::string(status.message()));
      }
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    if (tend_ != nullptr) tend_();
  }
}

}  // namespace aludel
