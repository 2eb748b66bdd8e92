#include "server/prefill/run_timeline.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::Contains;
using ::testing::Pair;

// Times are seconds since the run was received.
absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(100 + seconds); }

Span SpanOf(const RunTimeline& timeline, const absl::Status& status = absl::OkStatus()) {
  TraceContext caller;
  caller.span_id = {1};
  TraceContext own;
  own.span_id = {2};
  return timeline.ToSpan(own, caller, "tiny", "r1", {.frames = 3, .bytes = 4096}, status, At(10),
                         absl::FromUnixSeconds(1700000000));
}

TEST(RunTimeline, EndsWithTheTimeSinceTheRunWasReceived) {
  const RunTimeline timeline(At(0));
  const RunTimeline::Ended ended = timeline.End(absl::StatusCode::kCancelled, At(2.5));
  EXPECT_EQ(ended.code, absl::StatusCode::kCancelled);
  EXPECT_DOUBLE_EQ(ended.seconds, 2.5);
}

TEST(RunTimeline, FramesFromTheCacheAreEncodingSinceSendingBegan) {
  RunTimeline timeline(At(0));
  timeline.SendingBegan(At(1));
  timeline.SentFromCache(At(4));
  EXPECT_DOUBLE_EQ(timeline.times().encode, 3);
  EXPECT_DOUBLE_EQ(timeline.times().prefill, 0);
}

TEST(RunTimeline, ItsSpanIsOnTheWallClockWithinTheCallers) {
  RunTimeline timeline(At(0));
  timeline.Computed({.queue = 1, .prefill = 2, .encode = 0.5});
  const Span span = SpanOf(timeline);
  EXPECT_EQ(span.name, "prefill tiny");
  EXPECT_EQ(span.parent[0], 1);
  EXPECT_EQ(span.context.span_id[0], 2);
  EXPECT_EQ(span.end, absl::FromUnixSeconds(1700000000));
  EXPECT_EQ(span.end - span.start, absl::Seconds(10));
  EXPECT_EQ(span.error, "");
  EXPECT_THAT(span.attributes, Contains(Pair("aludel.request_id", Span::Value("r1"))));
  EXPECT_THAT(span.attributes, Contains(Pair("aludel.frames", Span::Value(int64_t{3}))));
  EXPECT_THAT(span.attributes, Contains(Pair("aludel.payload_bytes", Span::Value(int64_t{4096}))));
  EXPECT_THAT(span.attributes, Contains(Pair("aludel.stage.prefill_seconds", Span::Value(2.0))));
  EXPECT_EQ(SpanOf(timeline, absl::UnavailableError("gone")).error, "UNAVAILABLE: gone");
}

}  // namespace
}  // namespace aludel
