#include "server/prefill/prefill_metrics.h"

#include <memory>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PrefillMetrics, CountsPicturesThatFailedAndLogsTheFirst) {
  std::ostringstream log;
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  Metrics metrics;
  const PrefillMetrics run_metrics(&metrics);
  run_metrics.SetVideoFailures({});
  EXPECT_THAT(metrics.Render(), HasSubstr("\naludel_video_failures_total 0\n"));
  EXPECT_EQ(log.str(), "");
  run_metrics.SetVideoFailures({.payloads = 2, .first = "no memory"});
  EXPECT_THAT(log.str(), HasSubstr("no memory"));
  log.str("");
  run_metrics.SetVideoFailures({.payloads = 5, .first = "no memory"});
  run_metrics.SetVideoFailures({.payloads = 4, .first = "no memory"});
  EXPECT_THAT(log.str(), Not(HasSubstr("no memory")));
  EXPECT_THAT(metrics.Render(), HasSubstr("\naludel_video_failures_total 5\n"));
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace aludel
