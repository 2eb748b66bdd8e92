#include "server/process/exit_limit.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "spdlog/spdlog.h"

namespace aludel {

void ExitWithin(absl::Duration limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(limit));
    spdlog::critical("a thread does not end {:.0f} s after the signal to stop: exiting",
                     absl::ToDoubleSeconds(limit));
    spdlog::shutdown();
    std::_Exit(1);
  }).detach();
}

}  // namespace aludel
