#include "server/host/engine_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(EngineMetrics, SnapshotsRaiseCountersAndSetGauges) {
  Metrics metrics;
  const EngineMetrics engine(&metrics);
  EngineStats stats{.running = 1, .waiting = 2, .kv_blocks_total = 8, .kv_blocks_used = 2, .steps = 5};
  engine.Set("chat", stats);
  stats.steps = 7;
  stats.replays = {.eager = 2, .captured = 4, .replayed = 3, .changed = 1};
  engine.Set("chat", stats);
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

}  // namespace
}  // namespace aludel
