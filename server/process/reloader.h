#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace aludel {

// Files that may change while a server runs: looks at their modification times once per interval and, where
// one has changed, calls its reload; Poke() (for SIGHUP) calls all of them. What a reload says is logged: a
// failed one leaves the old state in use and is tried again at the next change. Owns one thread, on which
// reloads run. Thread-safe.
class Reloader {
 public:
  struct Watched {
    std::vector<std::string> files;
    std::function<absl::Status()> reload;
    bool logs = true;  // false: `reload` logs what it finds by itself
  };
  // `tend`, where it is set, is called at every look, behind reloads.
  Reloader(std::vector<Watched> watched, absl::Duration interval, std::function<void()> tend = nullptr);
  ~Reloader();

  void Poke();

 private:
  void Loop();

  const std::vector<Watched> watched_;
  const absl::Duration interval_;
  const std::function<void()> tend_;
  std::mutex mutex_;  // as in Timer; guards what follows
  std::condition_variable wake_;
  bool poked_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace aludel
