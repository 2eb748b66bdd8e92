#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/calibrate/plan/stage_work.h"

namespace aludel {

// What stages took. A thread of its own looks at the process's memory ten times a second, for solvers report no
// progress. Begin and End belong to one thread; figures are read after End.
class StageMeter {
 public:
  struct Figures {
    double seconds = 0;
    int64_t memory = 0;  // the most that was held (HeldMemory), bytes
    int64_t times = 0;
  };

  StageMeter();
  ~StageMeter();
  StageMeter(const StageMeter&) = delete;
  StageMeter& operator=(const StageMeter&) = delete;

  // Ends the stage at hand, if there is one.
  void Begin(Stage stage);
  void End();
  const Figures& Of(Stage stage) const { return figures_[static_cast<size_t>(stage)]; }
  // Since the meter was made.
  double Seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  void Watch();
  void Look();  // with mutex_ held

  const Clock::time_point start_ = Clock::now();
  Clock::time_point begun_;
  std::array<Figures, kStages> figures_;
  std::mutex mutex_;  // of what follows, and of figures_ while a stage runs
  std::condition_variable wake_;
  std::optional<Stage> stage_;
  bool ends_ = false;
  std::thread watcher_;  // last: it uses the others
};

}  // namespace aludel
