#include "server/observe/metrics.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observe/named_series.h"
#include "server/observe/request_metrics.h"

namespace aludel {
namespace {

using ::testing::AllOf;
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
  for (int i = 0; i < 2 * Metrics::kMaxLabelValues; ++i) rate.Remove({{"peer", std::to_string(i)}});
  for (int i = 0; i <= Metrics::kMaxLabelValues; ++i) rate.Set({{"peer", absl::StrCat("t", i)}}, i);
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_rate{peer=\"t63\"} 63"));
  // The last one is told with others.
  rate.Remove({{"peer", "t64"}});
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_rate{peer=\"other\"} 64"));
  rate.Remove({{"peer", "t63"}});
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("t63")));
}

TEST(Metrics, ServersAndModelsMayBeMany) {
  Metrics metrics;
  const GaugeFamily ready = metrics.Gauge("aludel_ready", "Ready.");
  for (int i = 0; i <= Metrics::kMaxTargets; ++i) ready.Set({{"target", absl::StrCat("t", i)}}, i);
  for (int i = 0; i <= Metrics::kMaxModels; ++i) ready.Set({{"model", absl::StrCat("m", i)}}, i);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("{target=\"t4095\"} 4095"));
  EXPECT_THAT(text, HasSubstr("{target=\"other\"} 4096"));
  EXPECT_THAT(text, HasSubstr("{model=\"m255\"} 255"));
  EXPECT_THAT(text, HasSubstr("{model=\"other\"} 256"));
}

TEST(Metrics, ADroppedNameLeavesNoSeriesAndMakesRoom) {
  Metrics metrics;
  const std::vector<double> buckets = {1, 10};
  const CounterFamily steps = metrics.Counter("aludel_steps_total", "Steps.");
  const GaugeFamily open = metrics.Gauge("aludel_open", "Open.");
  const HistogramFamily wait = metrics.Histogram("aludel_wait_seconds", "Wait.", buckets);
  for (const char* model : {"a", "b"}) {
    steps.Raise({{"model", model}, {"kind", "x"}}, 7);
    open.Set({{"model", model}}, 7);
    wait.Observe({{"model", model}}, 7);
  }
  metrics.Drop("model", "a");
  std::string text = metrics.Render();
  EXPECT_THAT(text, Not(HasSubstr("model=\"a\"")));
  EXPECT_THAT(text, HasSubstr("aludel_steps_total{kind=\"x\",model=\"b\"} 7"));
  EXPECT_THAT(text, HasSubstr("aludel_open{model=\"b\"} 7"));
  EXPECT_THAT(text, HasSubstr("aludel_wait_seconds_sum{model=\"b\"} 7"));
  steps.Raise({{"model", "a"}, {"kind", "x"}}, 9);  // all of it anew, though it was 7 once
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_steps_total{kind=\"x\",model=\"a\"} 9"));
  // However many come and go, one at a time.
  for (int i = 0; i < 3 * Metrics::kMaxModels; ++i) {
    const std::string model = absl::StrCat("guest", i);
    steps.Add({{"model", model}});
    EXPECT_THAT(metrics.Render(), HasSubstr(absl::StrCat("{model=\"", model, "\"} 1")));
    metrics.Drop("model", model);
  }
}

TEST(NamedSeries, OneThatGoesIsToldOnceMore) {
  Metrics metrics;
  const CounterFamily steps = metrics.Counter("aludel_steps_total", "Steps.");
  std::set<std::string> names = {"base", "adapter", "back"};
  NamedSeries models(&metrics, "model");
  metrics.OnRender([&] { models.Set(names); });
  for (const std::string& name : names) steps.Add({{"model", name}}, 3);
  EXPECT_THAT(metrics.Render(), HasSubstr("model=\"adapter\"} 3"));
  names = {"base"};
  EXPECT_THAT(metrics.Render(), AllOf(HasSubstr("model=\"adapter\"} 3"), HasSubstr("model=\"back\"} 3")));
  names = {"base", "back"};
  EXPECT_THAT(metrics.Render(), AllOf(HasSubstr("model=\"base\"} 3"), Not(HasSubstr("adapter")),
                                      HasSubstr("model=\"back\"} 3")));
  steps.Add({{"model", "adapter"}});  // by a request that ends late
  EXPECT_THAT(metrics.Render(), HasSubstr("model=\"adapter\"} 1"));
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("adapter")));
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
