#include "server/process/exit_limit.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// What saying so may take.
constexpr std::chrono::seconds kLogTime(1);

}  // namespace

void ExitWithin(absl::Duration limit) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  // The log is not read, or the wedged thread holds it: this one needs nothing.
  std::thread([end] {
    std::this_thread::sleep_until(end + kLogTime);
    std::_Exit(1);
  }).detach();
  std::thread([end, limit] {
    std::this_thread::sleep_until(end);
    spdlog::critical("a thread does not end {:.0f} s after the signal to stop: exiting",
                     absl::ToDoubleSeconds(limit));
    std::_Exit(1);
  }).detach();
}

}  // namespace aludel
