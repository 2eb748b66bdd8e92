#include "server/process/last_words.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

void Prepare() {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::stderr_sink_mt>()));
  GiveReasonWhenEnded();
}

// On a thread of its own, where nobody catches.
void EndOnAThread(const std::function<void()>& body) {
  Prepare();
  std::thread(body).join();
}

void LimitAddressSpace() {
  const rlimit limit = {.rlim_cur = rlim_t{4} << 40, .rlim_max = rlim_t{4} << 40};
  if (::setrlimit(RLIMIT_AS, &limit) == 0) Prepare();
  std::exit(0);
}

TEST(LastWords, SayWhatWasMissing) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(EndOnAThread([] { std::vector<char> none(SIZE_MAX / 4); }), ::testing::ExitedWithCode(1),
              "out of memory: an allocation failed. Look at ulimit -v");
  EXPECT_EXIT(EndOnAThread([] { throw std::system_error(EAGAIN, std::generic_category()); }),
              ::testing::ExitedWithCode(1), "a thread cannot be started: look at ulimit -u");
  EXPECT_EXIT(EndOnAThread([] { throw std::runtime_error("some library's"); }), ::testing::ExitedWithCode(1),
              "unexpected error: some library's");
}

TEST(LastWords, WarnWhereTheAddressSpaceIsLimited) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(LimitAddressSpace(), ::testing::ExitedWithCode(0),
              "the address space is limited to 4194304 MB");
}

}  // namespace
}  // namespace aludel
