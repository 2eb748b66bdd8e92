#include "server/process/exit_limit.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/process/last_words.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

[[noreturn]] void Wait() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

// A log that nobody reads.
class StuckSink : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg&) override { Wait(); }
  void flush_() override {}
};

void LogTo(const spdlog::sink_ptr& sink) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
}

void ExitWithAStuckLog() {
  LogTo(std::make_shared<StuckSink>());
  ExitWithin(absl::ZeroDuration());
  Wait();
}

void ExitWhileOthersLog() {
  LogTo(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      while (true) spdlog::info("a thread that still runs");
    }).detach();
  }
  ExitWithin(absl::Milliseconds(100));
  Wait();
}

void EndWithAStuckLog() {
  LogTo(std::make_shared<StuckSink>());
  GiveReasonWhenEnded();
  std::thread([] { throw std::runtime_error("nobody reads this"); }).join();
}

TEST(ExitWithin, NeedsNoLog) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(ExitWithAStuckLog(), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(EndWithAStuckLog(), ::testing::ExitedWithCode(1), "");
}

TEST(ExitWithin, LeavesOtherThreadsTheirLog) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(ExitWhileOthersLog(), ::testing::ExitedWithCode(1), "a thread does not end 0 s after");
}

}  // namespace
}  // namespace aludel
