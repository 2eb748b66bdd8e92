#include "server/observe/metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/engine/engine_stats.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, FirstTokenIsSplitByStage) {
  Metrics metrics;
  metrics.ObserveFirstToken({.model = "chat", .plan = "remote", .format = "raw"},
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

TEST(Metrics, LabelValuesAreBounded) {
  Metrics metrics;
  for (int i = 0; i < 1000; ++i) metrics.CountDroppedFrame(std::to_string(i));
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("aludel_frames_dropped_total{reason=\"63\"} 1"));
  EXPECT_THAT(text, HasSubstr("aludel_frames_dropped_total{reason=\"other\"} 936"));
  EXPECT_THAT(text, Not(HasSubstr("reason=\"64\"")));
}

TEST(Metrics, SnapshotsRaiseCountersAndSetGauges) {
  Metrics metrics;
  EngineStats stats{.running = 1, .waiting = 2, .kv_blocks_total = 8, .kv_blocks_used = 2, .steps = 5};
  metrics.SetEngine("chat", stats);
  stats.steps = 7;
  stats.replays = {.eager = 2, .captured = 4, .replayed = 3, .changed = 1};
  metrics.SetEngine("chat", stats);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("aludel_num_requests_waiting{model=\"chat\"} 2"));
  EXPECT_THAT(text, HasSubstr("aludel_kv_cache_usage_perc{model=\"chat\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("aludel_kv_blocks{model=\"chat\",state=\"reserved\"} 0"));
  EXPECT_THAT(text, HasSubstr("aludel_engine_events_total{event=\"step\",model=\"chat\"} 7"));
  EXPECT_THAT(text, HasSubstr("aludel_engine_events_total{event=\"graph_eager\",model=\"chat\"} 2"));
  EXPECT_THAT(text, HasSubstr("aludel_engine_events_total{event=\"graph_captured\",model=\"chat\"} 4"));
  EXPECT_THAT(text, HasSubstr("aludel_engine_events_total{event=\"graph_replayed\",model=\"chat\"} 3"));
  EXPECT_THAT(text, HasSubstr("aludel_engine_events_total{event=\"graph_changed\",model=\"chat\"} 1"));
}

TEST(Metrics, CollectorsRunBeforeEachRender) {
  Metrics metrics;
  int calls = 0;
  metrics.OnRender([&] { metrics.SetTicketsOpen(++calls); });
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_tickets_open 1"));
  EXPECT_THAT(metrics.Render(), HasSubstr("aludel_tickets_open 2"));
}

}  // namespace
}  // namespace aludel
