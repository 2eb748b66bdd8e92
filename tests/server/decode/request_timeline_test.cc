#include "server/decode/request_timeline.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::Contains;
using ::testing::Pair;

// Times are seconds since the request was received.
absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(100 + seconds); }

const Plan kLocalPlan = {.reason = PlanReason::kShortPrompt, .predicted_ttft = 0.5};
const Plan kRemotePlan = {.kind = PlanKind::kRemote,
                          .target = 1,
                          .format = "aludel",
                          .handed_over_tokens = 30,
                          .reason = PlanReason::kCoded,
                          .predicted_ttft = 2};
// Of an engine that waited three seconds for frames.
const SequenceTimes kTimes = {.queue = 1, .await = 3, .reconstruct = 0.5, .ttft = 5};
constexpr absl::StatusCode kNoFallback = absl::StatusCode::kOk;

RequestTimeline Timeline(const Plan& plan, int choices = 1) {
  RequestTimeline timeline("chat", At(0));
  timeline.Received("r1", 32);
  timeline.Planned(plan, 28, choices, At(0.5));
  return timeline;
}

RequestTrace Trace() {
  RequestTrace trace;
  trace.caller.span_id = {1};
  trace.request.span_id = {2};
  trace.handoff.span_id = {3};
  return trace;
}

std::string Text(const RequestLabels& labels) {
  return labels.model + " " + labels.plan + " " + labels.format;
}

TEST(RequestTimeline, StagesOfTheFirstTokenSumToTheTimeSinceTheRequestWasReceived) {
  RequestTimeline timeline = Timeline(kRemotePlan);
  const auto started = timeline.FirstToken(kTimes, ProducerSeconds{.queue = 0.5, .prefill = 1, .encode = 0.5},
                                           false, kNoFallback, At(5.5));
  const StageSeconds& s = started.stages;
  EXPECT_DOUBLE_EQ(s.ttft, 5.5);
  EXPECT_DOUBLE_EQ(s.queue, 2);
  EXPECT_DOUBLE_EQ(s.transfer, 1);
  EXPECT_DOUBLE_EQ(s.queue + s.prefill + s.encode + s.transfer + s.reconstruct + s.recompute + s.first_decode,
                   5.5);
  EXPECT_DOUBLE_EQ(started.before_admission, 0.5);
}

TEST(RequestTimeline, ARemotePlanReportsItsHandoffAtTheFirstToken) {
  RequestTimeline timeline = Timeline(kRemotePlan);
  const auto started = timeline.FirstToken(kTimes, {}, false, kNoFallback, At(5.5));
  EXPECT_EQ(Text(started.labels), "chat remote aludel");
  EXPECT_EQ(started.plan, PlanKind::kRemote);
  EXPECT_EQ(started.handed_over_tokens, 28);
  EXPECT_EQ(started.predicted_ttft, 2);
  ASSERT_TRUE(started.handoff.has_value());
  EXPECT_EQ(started.handoff->code, absl::StatusCode::kOk);
  EXPECT_DOUBLE_EQ(started.handoff->seconds, 5);  // since admission
  EXPECT_FALSE(timeline.End(absl::StatusCode::kOk, At(9)).handoff.has_value()) << "counted twice";
}

TEST(RequestTimeline, AFallbackIsLabelledSoAndItsPredictionIsNotJudged) {
  RequestTimeline timeline = Timeline(kRemotePlan);
  const auto started = timeline.FirstToken(kTimes, {}, true, absl::StatusCode::kUnavailable, At(5.5));
  EXPECT_EQ(Text(started.labels), "chat fallback aludel");
  EXPECT_EQ(started.plan, PlanKind::kFallback);
  EXPECT_EQ(started.handed_over_tokens, 0);
  EXPECT_FALSE(started.predicted_ttft.has_value());
  EXPECT_EQ(timeline.predicted_ttft(), 2);  // what the client is told of the plan that was chosen
  ASSERT_TRUE(started.handoff.has_value());
  EXPECT_EQ(started.handoff->code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(Text(timeline.End(absl::StatusCode::kOk, At(9)).labels), "chat fallback aludel");
}

TEST(RequestTimeline, PlansWithoutAHandoffReportNone) {
  RequestTimeline local = Timeline(kLocalPlan);
  const auto started = local.FirstToken({.prefill = 4, .ttft = 5}, {}, false, kNoFallback, At(5.5));
  EXPECT_EQ(Text(started.labels), "chat local ");
  EXPECT_EQ(started.predicted_ttft, 0.5);
  EXPECT_FALSE(started.handoff.has_value());
  RequestTimeline cached = Timeline({.kind = PlanKind::kCached, .format = "aludel"});
  EXPECT_EQ(Text(cached.FirstToken({}, {}, false, kNoFallback, At(1)).labels), "chat cached aludel");
  EXPECT_FALSE(Timeline(kLocalPlan).End(absl::StatusCode::kCancelled, At(1)).handoff.has_value());
}

TEST(RequestTimeline, WhatIsReplayedIsHandedOverButNoHandoff) {
  Plan plan = kRemotePlan;
  plan.kind = PlanKind::kStored;
  RequestTimeline timeline = Timeline(plan);
  const auto started = timeline.FirstToken(kTimes, {}, false, kNoFallback, At(5.5));
  EXPECT_EQ(Text(started.labels), "chat stored aludel");
  EXPECT_EQ(started.handed_over_tokens, 28);
  EXPECT_FALSE(started.handoff.has_value());
  const auto fallback = Timeline(plan).FirstToken(kTimes, {}, true, absl::StatusCode::kDataLoss, At(5.5));
  EXPECT_EQ(Text(fallback.labels), "chat fallback aludel");
  EXPECT_EQ(fallback.handed_over_tokens, 0);
}

TEST(RequestTimeline, AReplayThatAPrefillServerMadeGoodIsAHandoff) {
  Plan plan = kRemotePlan;
  plan.kind = PlanKind::kStored;
  RequestTimeline timeline = Timeline(plan);
  timeline.AskedServer();
  const auto started = timeline.FirstToken(kTimes, {}, false, kNoFallback, At(5.5));
  EXPECT_EQ(Text(started.labels), "chat remote aludel");
  EXPECT_EQ(started.plan, PlanKind::kRemote);
  EXPECT_EQ(started.handed_over_tokens, 28);
  EXPECT_FALSE(started.predicted_ttft.has_value()) << "that was for the store";
  EXPECT_EQ(timeline.predicted_ttft(), 2);
  ASSERT_TRUE(started.handoff.has_value());
  EXPECT_EQ(started.handoff->code, absl::StatusCode::kOk);

  RequestTimeline failed = Timeline(plan);
  failed.AskedServer();
  const auto fallback = failed.FirstToken(kTimes, {}, true, absl::StatusCode::kUnavailable, At(5.5));
  EXPECT_EQ(Text(fallback.labels), "chat fallback aludel");
  ASSERT_TRUE(fallback.handoff.has_value()) << "its failure counts";
  EXPECT_EQ(fallback.handoff->code, absl::StatusCode::kUnavailable);

  RequestTimeline ended = Timeline(plan);
  ended.AskedServer();
  EXPECT_TRUE(ended.End(absl::StatusCode::kCancelled, At(3)).handoff.has_value());
  RequestTimeline local = Timeline(kLocalPlan);
  local.AskedServer();
  EXPECT_EQ(local.FirstToken(kTimes, {}, false, kNoFallback, At(5.5)).plan, PlanKind::kLocal);
}

TEST(RequestTimeline, AHandoffEndsWithARequestThatHasNoToken) {
  const auto ended = Timeline(kRemotePlan).End(absl::StatusCode::kCancelled, At(3));
  EXPECT_EQ(Text(ended.labels), "chat remote aludel");
  EXPECT_EQ(ended.code, absl::StatusCode::kCancelled);
  EXPECT_DOUBLE_EQ(ended.seconds, 3);
  EXPECT_EQ(ended.prompt_tokens, 32);
  ASSERT_TRUE(ended.handoff.has_value());
  EXPECT_EQ(ended.handoff->code, absl::StatusCode::kCancelled);
  EXPECT_DOUBLE_EQ(ended.handoff->seconds, 3);
}

TEST(RequestTimeline, ARequestRefusedBeforeItsPlanIsALocalOne) {
  RequestTimeline timeline("chat", At(0));
  timeline.Received("", 7);
  const auto ended = timeline.End(absl::StatusCode::kInvalidArgument, At(0.25));
  EXPECT_EQ(Text(ended.labels), "chat local ");
  EXPECT_EQ(ended.prompt_tokens, 7);
  EXPECT_DOUBLE_EQ(ended.seconds, 0.25);
}

TEST(RequestTimeline, TokensAreTimedWithinTheirChoice) {
  RequestTimeline timeline = Timeline(kLocalPlan, 2);
  EXPECT_EQ(timeline.Token(0, true, At(1)), std::nullopt);
  EXPECT_EQ(timeline.Token(1, true, At(2)), std::nullopt);
  EXPECT_EQ(timeline.Token(0, false, At(4)), 3);
  EXPECT_EQ(timeline.Token(1, false, At(4)), 2);
  EXPECT_EQ(timeline.End(absl::StatusCode::kOk, At(5)).completion_tokens, 4);
}

TEST(RequestTimeline, SpansAreOnTheWallClockAndNested) {
  RequestTimeline timeline = Timeline(kRemotePlan);
  timeline.FirstToken(kTimes, {}, false, kNoFallback, At(5.5));
  timeline.Token(0, true, At(5.5));
  HandoffReport handoff;
  handoff.begin = At(0.5);
  handoff.end = At(4.5);
  handoff.attempts = 2;
  handoff.usage.bytes = 1000;
  const absl::Time wall_now = absl::FromUnixSeconds(1700000000);
  const std::vector<Span> spans = timeline.Spans(Trace(), handoff, absl::OkStatus(), At(10), wall_now);
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0].name, "decode chat");
  EXPECT_EQ(spans[0].parent, Trace().caller.span_id);
  EXPECT_EQ(spans[0].start, wall_now - absl::Seconds(10));
  EXPECT_EQ(spans[0].end, wall_now);
  EXPECT_EQ(spans[0].error, "");
  EXPECT_THAT(spans[0].attributes, Contains(Pair("aludel.plan", Span::Value("remote"))));
  EXPECT_THAT(spans[0].attributes, Contains(Pair("gen_ai.usage.output_tokens", Span::Value(int64_t{1}))));
  EXPECT_THAT(spans[0].attributes, Contains(Pair("aludel.stage.queue_seconds", Span::Value(1.5))));
  EXPECT_EQ(spans[1].name, "handoff aludel");
  EXPECT_EQ(spans[1].parent, Trace().request.span_id);
  EXPECT_EQ(spans[1].start, wall_now - absl::Seconds(9.5));
  EXPECT_EQ(spans[1].end, wall_now - absl::Seconds(5.5));
  EXPECT_EQ(spans[1].error, "");
  EXPECT_THAT(spans[1].attributes, Contains(Pair("aludel.attempts", Span::Value(int64_t{2}))));
  EXPECT_THAT(spans[1].attributes, Contains(Pair("aludel.handed_over_tokens", Span::Value(int64_t{28}))));
}

TEST(RequestTimeline, SpansSayWhatWentWrong) {
  RequestTimeline timeline = Timeline(kRemotePlan);
  const absl::Status lost = absl::UnavailableError("gone");
  EXPECT_EQ(timeline.Spans(Trace(), {}, lost, At(1), At(1)).size(), 1) << "a handoff that has not ended";
  timeline.FirstToken(kTimes, {}, true, absl::StatusCode::kUnavailable, At(5.5));
  HandoffReport handoff;
  handoff.begin = At(1);
  handoff.end = At(2);
  const std::vector<Span> spans = timeline.Spans(Trace(), handoff, lost, At(6), At(6));
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0].error, "UNAVAILABLE: gone");
  EXPECT_EQ(spans[1].error, "the prompt was prefilled on the decode server");
}

}  // namespace
}  // namespace aludel
