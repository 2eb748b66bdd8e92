#include "server/gateway/routing/told_answer.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

using Verdict = ToldAnswer::Verdict;

v1::Token Token(int32_t id, uint32_t choice = 0) {
  v1::Token token;
  token.set_id(id);
  token.set_choice(choice);
  return token;
}
v1::Finished Finished(uint32_t choice = 0) {
  v1::Finished finished;
  finished.set_choice(choice);
  return finished;
}
v1::Started Started(const std::string& plan, const std::string& format = "") {
  v1::Started started;
  started.set_plan(plan);
  started.set_format(format);
  return started;
}

TEST(ToldAnswer, TellsOnceWhatAnotherServerRepeats) {
  ToldAnswer told(2);
  EXPECT_EQ(told.Hear(Token(5)), Verdict::kNews);
  EXPECT_EQ(told.Hear(Token(6)), Verdict::kNews);
  EXPECT_EQ(told.Hear(Token(7, 1)), Verdict::kNews);
  EXPECT_EQ(told.Hear(Finished(1)), Verdict::kNews);
  EXPECT_FALSE(told.repeating());
  EXPECT_FALSE(told.whole());
  told.Repeat();
  EXPECT_TRUE(told.repeating());
  EXPECT_EQ(told.Hear(Token(7, 1)), Verdict::kRepeated);
  EXPECT_EQ(told.Hear(Token(5)), Verdict::kRepeated);
  EXPECT_TRUE(told.repeating());
  EXPECT_EQ(told.Hear(Token(6)), Verdict::kRepeated);
  EXPECT_FALSE(told.repeating());
  EXPECT_EQ(told.Hear(Finished(1)), Verdict::kRepeated);
  EXPECT_EQ(told.Hear(Token(8)), Verdict::kNews);
  EXPECT_EQ(told.Hear(Finished()), Verdict::kNews);
  EXPECT_TRUE(told.whole());
}

TEST(ToldAnswer, SeesAnAnswerThatDiverges) {
  ToldAnswer other_token(1);
  other_token.Hear(Token(5));
  other_token.Repeat();
  EXPECT_EQ(other_token.Hear(Token(6)), Verdict::kDiverged);

  ToldAnswer shorter(1);
  shorter.Hear(Token(5));
  shorter.Repeat();
  EXPECT_EQ(shorter.Hear(Finished()), Verdict::kDiverged);

  ToldAnswer longer(1);
  longer.Hear(Token(5));
  longer.Hear(Finished());
  longer.Repeat();
  EXPECT_EQ(longer.Hear(Token(5)), Verdict::kRepeated);
  EXPECT_EQ(longer.Hear(Token(6)), Verdict::kDiverged);
}

TEST(ToldAnswer, BeginsAgainWhereNothingHasLeft) {
  ToldAnswer told(1);
  told.Started(Started("remote", "int8"));
  told.Hear(Token(5));
  told.Hear(Finished());
  told.Forget();
  EXPECT_EQ(told.started().plan(), "");
  EXPECT_FALSE(told.whole());
  EXPECT_EQ(told.Hear(Token(9)), Verdict::kNews);
}

TEST(ToldAnswer, LeavesAnUnknownChoiceToTheObserver) {
  ToldAnswer told(1);
  EXPECT_EQ(told.Hear(Token(1, 4'000'000'000)), Verdict::kNews);
  EXPECT_EQ(told.Hear(Finished(1)), Verdict::kNews);
  EXPECT_FALSE(told.whole());
}

TEST(ToldAnswer, ComparesPlansByTheCacheThatTheyGive) {
  ToldAnswer told(1);
  told.Started(Started("local"));
  EXPECT_TRUE(told.SamePlan(Started("fallback", "int8")));  // exact as well
  EXPECT_FALSE(told.SamePlan(Started("remote", "int8")));
  told.Started(Started("remote", "int8"));
  EXPECT_TRUE(told.SamePlan(Started("remote", "int8")));
  EXPECT_FALSE(told.SamePlan(Started("remote", "raw")));
  EXPECT_FALSE(told.SamePlan(Started("cached", "int8")));
  EXPECT_FALSE(told.SamePlan(Started("local")));
}

TEST(ToldAnswer, TakesTheSameFramesFromAServersOwnStore) {
  v1::Started remote = Started("remote", "aludel");
  v1::Started stored = Started("stored", "aludel");
  remote.set_handed_over_tokens(99);
  stored.set_handed_over_tokens(99);
  ToldAnswer told(1);
  told.Started(stored);
  EXPECT_TRUE(told.SamePlan(remote));
  EXPECT_FALSE(told.SamePlan(Started("remote", "int8")));
  remote.set_handed_over_tokens(98);
  EXPECT_FALSE(told.SamePlan(remote)) << "the last one would be computed over codes";
  v1::GenerateRequest request;
  told.AskForPlan(&request);
  EXPECT_EQ(request.format(), "aludel");
  EXPECT_TRUE(request.has_max_staleness_ms());
}

TEST(ToldAnswer, AsksForACacheLikeTheFirst) {
  ToldAnswer told(1);
  v1::GenerateRequest request;
  request.set_format("aludel");
  told.Started(Started("fallback", "aludel"));
  told.AskForPlan(&request);
  EXPECT_EQ(request.fidelity(), v1::FIDELITY_EXACT);
  EXPECT_EQ(request.format(), "");

  told.Started(Started("remote", "int8"));
  told.AskForPlan(&request);
  EXPECT_EQ(request.fidelity(), v1::FIDELITY_UNSPECIFIED);
  EXPECT_EQ(request.format(), "int8");
  EXPECT_GT(request.max_staleness_ms(), uint64_t{365} * 24 * 3600 * 1000);
  // A bound that the client set stands.
  request.set_max_staleness_ms(50);
  told.AskForPlan(&request);
  EXPECT_EQ(request.max_staleness_ms(), 50);
}

}  // namespace
}  // namespace aludel
