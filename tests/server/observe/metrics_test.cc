#include "server/observe/metrics.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observe/request_metrics.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, LabelValuesAreBounded) {
  Metrics metrics;
  const CounterFamily frames = metrics.Counter("aludel_frames_total", "Frames.");
  for (int i = 0; i < 1000; ++i) frames.Add({{"reason", std::to_string(i)}});
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("aludel_frames_total{reason=\"63\"} 1"));
  EXPECT_THAT(text, HasSubstr("aludel_frames_total{reason=\"other\"} 936"));
  EXPECT_THAT(text, Not(HasSubstr("reason=\"64\"")));
}

TEST(Metrics, WhatIsRemovedTakesNoPlaceAmongTheValues) {
  Metrics metrics;
  const GaugeFamily rate = metrics.Gauge("aludel_rate", "A rate.");
  for (int i = 0; i < 2 * Metrics::kMaxLabelValues; ++i) rate.Remove({{"target", std::to_string(i)}});
  for (int i = 0; i <= Metrics::kMaxLabelValues; ++i) rate.Set({{"target", absl::StrCat("t", i)}}, i);
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_rate{target=\"t63\"} 63"));
  // The last one is told with others.
  rate.Remove({{"target", "t64"}});
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_rate{target=\"other\"} 64"));
  rate.Remove({{"target", "t63"}});
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("t63")));
}

TEST(Metrics, ANameRegisteredTwiceIsOneMetric) {
  Metrics metrics;
  metrics.Counter("aludel_frames_total", "Frames.").Add({{"way", "out"}}, 2);
  metrics.Counter("aludel_frames_total", "Frames.").Add({{"way", "out"}}, 3);
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_frames_total{way=\"out\"} 5"));
}

TEST(Metrics, SnapshotsRaiseCountersAndNeverLowerThem) {
  Metrics metrics;
  const CounterFamily steps = metrics.Counter("aludel_steps_total", "Steps.");
  steps.Raise({}, 5);
  steps.Raise({}, 7);
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_steps_total 7\n"));
  steps.Raise({}, 2);  // what is counted has begun again
  steps.Raise({}, 3);
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_steps_total 8\n"));
}

TEST(Metrics, SeriesThatAreExpectedStartAtZero) {
  Metrics metrics;
  const std::vector<double> buckets = {1, 10};
  metrics.Counter("aludel_lost_total", "Lost.").Add({{"reason", "link"}}, 0);
  metrics.Histogram("aludel_wait_seconds", "Wait.", buckets).Expect({{"model", "m"}});
  metrics.Counter("aludel_unused_total", "Registered, and without a series.");
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("aludel_lost_total{reason=\"link\"} 0"));
  EXPECT_THAT(text, HasSubstr("aludel_wait_seconds_count{model=\"m\"} 0"));
  EXPECT_THAT(text, HasSubstr("aludel_wait_seconds_bucket{model=\"m\",le=\"10\"} 0"));
  EXPECT_THAT(text, Not(HasSubstr("aludel_unused_total")));
}

TEST(Metrics, CollectorsRunBeforeEachRender) {
  Metrics metrics;
  const GaugeFamily open = metrics.Gauge("aludel_open", "Open.");
  int calls = 0;
  metrics.OnRender([&] { open.Set({}, ++calls); });
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_open 1"));
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_open 2"));
}

TEST(Metrics, EveryProcessSaysItsVersionAndWhatItUses) {
  Metrics metrics;
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("aludel_build_info{version=\""));
  EXPECT_THAT(text, HasSubstr("\nprocess_cpu_seconds_total "));
  EXPECT_THAT(text, HasSubstr("\nprocess_resident_memory_bytes "));
  EXPECT_THAT(text, HasSubstr("\nprocess_open_fds "));
  EXPECT_THAT(text, HasSubstr("\nprocess_start_time_seconds "));
}

TEST(RequestMetrics, FirstTokenIsSplitByStage) {
  Metrics metrics;
  RequestMetrics(&metrics).ObserveFirstToken({.model = "chat", .plan = "remote", .format = "raw"},
                                             {.queue = .001, .transfer = .25, .held = .5, .ttft = .751});
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("aludel_time_to_first_token_seconds_sum{format=\"raw\",model=\"chat\","
                              "plan=\"remote\"} 0.751"));
  EXPECT_THAT(text,
              HasSubstr("aludel_time_to_first_generated_token_seconds_sum{format=\"raw\",model=\"chat\","
                        "plan=\"remote\"} 0.251"));
  EXPECT_THAT(text, HasSubstr("aludel_time_to_first_token_stage_seconds_sum{format=\"raw\",model=\"chat\","
                              "plan=\"remote\",stage=\"transfer\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("stage=\"held\"} 0.5"));
  EXPECT_THAT(text, HasSubstr("le=\"2560\""));
}

}  // namespace
}  // namespace aludel
