#include "kernels/cpu/thread_team.h"

#include <chrono>

#include "kernels/check.h"
#include "kernels/core_list.h"

namespace aludel::cpu {
namespace {

// Longer than what lies between two loops of a step, shorter than a time slice.
constexpr std::chrono::microseconds kSpin{100};
constexpr int kAnyCore = -1;
constexpr uint64_t kUnclaimed = 0xffffffffu;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until done(), spinning; false if it took longer than kSpin.
template <typename Done>
bool SpinUntil(Done done) {
  for (int i = 0; i < 256; ++i) {
    if (done()) return true;
    Pause();
  }
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  while (std::chrono::steady_clock::now() < deadline) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
  }
  return done();
}

}  // namespace

ThreadTeam::ThreadTeam(int threads, absl::Span<const int> cores) : threads_(threads), stretches_(threads) {
  ALUDEL_CHECK(threads > 0 && (cores.empty() || cores.size() >= static_cast<size_t>(threads)));
  for (int i = 1; i < threads; ++i) {
    const int core = cores.empty() ? kAnyCore : cores[i];
    workers_.emplace_back([this, i, core] {
      // The list was allowed when the device was opened; a process whose cores are taken away runs on.
      if (core != kAnyCore) KeepOnCores({core}).IgnoreError();
      Work(i);
    });
  }
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true);
  loops_.fetch_add(1);
  loops_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(int64_t tasks, absl::FunctionRef<void(int64_t)> body) {
  ALUDEL_CHECK(tasks >= 0 && tasks < static_cast<int64_t>(kUnclaimed));
  std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
  const TeamPressure::Clock::time_point begun = TeamPressure::Clock::now();
  if (workers_.empty() || tasks < 2 || !lock.try_lock() || pressure_.Alone(begun)) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  body_ = &body;
  unfinished_.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
  const uint32_t number = loops_.load(std::memory_order_relaxed) + 1;
  int64_t begin = 0;
  for (int64_t i = 0; i < threads_; ++i) {
    Stretch& stretch = stretches_[i];
    stretch.end = tasks * (i + 1) / threads_;
    const auto size = static_cast<uint64_t>(stretch.end - begin);
    stretch.open.store(uint64_t{number} << 32 | size, std::memory_order_release);
    begin = stretch.end;
  }
  loops_.store(number);  // sequentially consistent, as a worker's last look before it sleeps
  loops_.notify_all();
  RunAll(0);
  const TeamPressure::Clock::time_point ran = TeamPressure::Clock::now();
  const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  while (!SpinUntil(finished)) {
    const uint32_t left = unfinished_.load(std::memory_order_acquire);
    if (left != 0) unfinished_.wait(left);
  }
  const TeamPressure::Clock::time_point ended = TeamPressure::Clock::now();
  pressure_.Observe(ran - begun, ended - ran, ended);
}

bool ThreadTeam::RunOne(Stretch& stretch) {
  uint64_t open = stretch.open.load(std::memory_order_acquire);
  do {
    if ((open & kUnclaimed) == 0) return false;
  } while (!stretch.open.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel));
  (*body_)(stretch.end - static_cast<int64_t>(open & kUnclaimed));
  // The last one wakes the caller, which may have gone to sleep.
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  return true;
}

void ThreadTeam::RunAll(int self) {
  for (int i = 0; i < threads_; ++i) {
    while (RunOne(stretches_[(self + i) % threads_])) {
    }
  }
}

void ThreadTeam::Work(int self) {
  while (true) {
    const uint32_t seen = loops_.load();
    if (stop_.load()) return;  // set before the count that has been seen, or else the count will change
    RunAll(self);
    const auto changed = [&] { return loops_.load(std::memory_order_acquire) != seen; };
    if (!SpinUntil(changed)) loops_.wait(seen);
  }
}

}  // namespace aludel::cpu
