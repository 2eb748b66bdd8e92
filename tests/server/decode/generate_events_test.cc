#include "server/decode/generate_events.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

TEST(GenerateEvents, ReadWhatTheRequestWantsOfThePlan) {
  v1::GenerateRequest request;
  for (int i = 0; i < 5; ++i) request.add_prompt(i);
  request.set_format("int8");
  request.add_prefill_targets("b:1");
  request.add_prefill_targets("a:1");
  const PlanRequest plain = ReadPlanRequest(request);
  EXPECT_EQ(plain.prompt_tokens, 5);
  EXPECT_EQ(plain.format, "int8");
  EXPECT_EQ(plain.choices, 1) << "unset is one";
  request.mutable_sampling()->set_choices(3);
  EXPECT_EQ(ReadPlanRequest(request).choices, 3);
  EXPECT_THAT(plain.targets, ElementsAre("b:1", "a:1"));
  const std::pair<v1::Fidelity, Fidelity> kFidelities[] = {{v1::FIDELITY_EXACT, Fidelity::kExact},
                                                           {v1::FIDELITY_HIGH, Fidelity::kHigh},
                                                           {v1::FIDELITY_BALANCED, Fidelity::kBalanced},
                                                           {v1::FIDELITY_FAST, Fidelity::kFast}};
  for (const auto& [wire, fidelity] : kFidelities) {
    request.set_fidelity(wire);
    EXPECT_EQ(ReadPlanRequest(request).fidelity, fidelity);
  }
}

TEST(GenerateEvents, RequestsThatAreScoredOrUnansweredArePlannedAsExact) {
  v1::GenerateRequest request;
  request.set_fidelity(v1::FIDELITY_FAST);
  EXPECT_FALSE(ReadPlanRequest(request).whole);
  request.mutable_sampling()->set_no_answer(true);
  EXPECT_EQ(ReadPlanRequest(request).fidelity, Fidelity::kExact);
  EXPECT_FALSE(ReadPlanRequest(request).whole);
  request.mutable_sampling()->set_no_answer(false);
  request.mutable_sampling()->set_prompt_logprobs(0);
  EXPECT_EQ(ReadPlanRequest(request).fidelity, Fidelity::kExact);
  EXPECT_TRUE(ReadPlanRequest(request).whole);
}

TEST(GenerateEvents, ShowLogprobsOfThePrompt) {
  const v1::PromptLogprobs piece =
      AnswerEvent(PromptScores{.begin = 3,
                               .tokens = {{.logprobs = {{7, -0.5f}, {8, -0.25f}}, .rank = 2},
                                          {.logprobs = {{9, -1.5f}, {9, -1.5f}}, .rank = 1}}})
          .prompt_logprobs();
  EXPECT_EQ(piece.begin(), 3);
  EXPECT_EQ(piece.top(), 1);
  EXPECT_THAT(piece.ranks(), ElementsAre(2, 1));
  EXPECT_THAT(piece.tokens(), ElementsAre(7, 8, 9, 9));
  EXPECT_THAT(piece.logprobs(), ElementsAre(-0.5f, -0.25f, -1.5f, -1.5f));
}

TEST(GenerateEvents, SayHowTheAnswerStarted) {
  RequestTimeline::Started started;
  started.labels = {.model = "chat", .plan = "remote", .format = "aludel"};
  started.handed_over_tokens = 30;
  started.stages.transfer = 0.25;
  started.stages.ttft = 0.5;
  const v1::GenerateEvent event = StartedEvent(started, {.predicted_ttft = 0.4,
                                                         .payload_bytes = 900,
                                                         .raw_bytes_per_token = 64,
                                                         .cached_tokens = 3,
                                                         .stored_tokens = 5});
  const v1::Started& out = event.started();
  EXPECT_EQ(out.plan(), "remote");
  EXPECT_EQ(out.format(), "aludel");
  EXPECT_EQ(out.handed_over_tokens(), 30);
  EXPECT_EQ(out.raw_bytes(), 64 * 30);
  EXPECT_EQ(out.payload_bytes(), 900);
  EXPECT_EQ(out.cached_tokens(), 3);
  EXPECT_EQ(out.stored_tokens(), 5);
  EXPECT_EQ(out.predicted_ttft(), 0.4);
  EXPECT_EQ(out.stages().transfer(), 0.25);
  EXPECT_EQ(out.stages().ttft(), 0.5);
  EXPECT_EQ(out.fallback_reason(), "");
  EXPECT_EQ(StartedEvent(started, {.fallback_reason = "late"}).started().fallback_reason(), "late");
}

TEST(GenerateEvents, ShowAsManyLogprobsAsTheClientAskedFor) {
  TokenEvent token{.choice = 2, .id = 7, .text = "x", .logprobs = {{7, -0.5f}, {8, -1.5f}, {9, -2.5f}}};
  const v1::Token two = AnswerEvent(token, 2).token();
  EXPECT_EQ(two.id(), 7);
  EXPECT_EQ(two.text(), "x");
  EXPECT_EQ(two.choice(), 2);
  ASSERT_EQ(two.logprobs_size(), 2);
  EXPECT_EQ(two.logprobs(1).token(), 8);
  EXPECT_EQ(two.logprobs(1).logprob(), -1.5f);
  EXPECT_EQ(AnswerEvent(token, 0).token().logprobs_size(), 0);
  EXPECT_EQ(AnswerEvent(token, 9).token().logprobs_size(), 3);
}

TEST(GenerateEvents, SayHowTheAnswerEnded) {
  SequenceResult result{
      .choice = 1, .reason = FinishReason::kLength, .prompt_tokens = 5, .completion_tokens = 6};
  result.tail_text = "end";
  v1::Finished out = AnswerEvent(result, /*stored_tokens=*/7).finished();
  EXPECT_EQ(out.reason(), "length");
  EXPECT_EQ(out.choice(), 1);
  EXPECT_EQ(out.prompt_tokens(), 5);
  EXPECT_EQ(out.completion_tokens(), 6);
  EXPECT_EQ(out.text(), "end");
  EXPECT_FALSE(out.has_stop_string());
  EXPECT_FALSE(out.has_stop_token());
  result.reason = FinishReason::kStop;
  result.stop = "\n";
  out = AnswerEvent(result, /*stored_tokens=*/7).finished();
  EXPECT_EQ(out.reason(), "stop");
  EXPECT_EQ(out.stop_string(), "\n");
  result.stop = "";
  result.stop_id = 3;
  EXPECT_EQ(AnswerEvent(result, /*stored_tokens=*/7).finished().stop_token(), 3);
}

}  // namespace
}  // namespace aludel
