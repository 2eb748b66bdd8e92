#include "runtime/evaluate/evaluation_tally.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

constexpr double kRawBytes = 100;  // a token

QuestionRecord Record(int64_t prompt_tokens, double oracle_f1, double f1, std::vector<double> kl) {
  FormatRecord format;
  format.f1 = f1;
  format.em = f1 == 1 ? 1 : 0;
  format.kl = kl;
  format.tv = kl;
  format.bytes = 10 * static_cast<double>(prompt_tokens);
  format.handed_over = prompt_tokens - 1;
  format.encode_seconds = 0.5;
  format.shares = {{.first_layer = 0, .layers = 2, .part = "codes", .bytes = format.bytes}};
  return {.prompt_tokens = prompt_tokens, .f1 = oracle_f1, .em = 1, .formats = {format, format}};
}

class Tally : public ::testing::Test {
 protected:
  Tally() : tally_({"one", "two"}, /*seed=*/1) {
    tally_.Add(Record(10, 1, 0.5, {0.1, 0.3}));
    tally_.Add(Record(30, 0.5, 0.5, {0.2, 0.2, 0.2, 1.2}));
    tally_.Fill(kRawBytes, &report_);
  }

  EvaluationTally tally_;
  EvaluateReport report_;
};

TEST_F(Tally, MeansAreOverQuestionsTokensOrPromptsAsTheyShould) {
  EXPECT_EQ(report_.prompt_tokens, 40);
  EXPECT_EQ(report_.answer_tokens, 6);
  EXPECT_DOUBLE_EQ(report_.oracle_f1, 0.75);
  ASSERT_EQ(report_.formats.size(), 2u);
  const FormatResult& format = report_.formats[1];
  EXPECT_EQ(format.name, "two");
  EXPECT_DOUBLE_EQ(format.f1, 0.5);
  EXPECT_NEAR(format.kl, 2.2 / 6, 1e-12) << "over answer tokens, not over questions";
  EXPECT_DOUBLE_EQ(format.bytes_per_token, 10);
  EXPECT_DOUBLE_EQ(format.bytes_vs_raw, 10 / kRawBytes);
  EXPECT_DOUBLE_EQ(format.encode_tokens_per_s, 38);
  EXPECT_EQ(format.reconstruct_tokens_per_s, 0) << "not measured";
  ASSERT_EQ(format.shares.size(), 1u);
  EXPECT_DOUBLE_EQ(format.shares[0].bytes, 10);
}

TEST_F(Tally, LossIsPairedByQuestion) {
  const FormatResult& format = report_.formats[0];
  EXPECT_LE(format.f1_loss_ci95.low, 0.25);
  EXPECT_GE(format.f1_loss_ci95.high, 0.25);
  EXPECT_GE(format.f1_loss_ci95.low, 0) << "no question lost less than nothing";
  EXPECT_LE(format.kl_ci95.low, format.kl);
  EXPECT_GE(format.kl_ci95.high, format.kl);
}

TEST_F(Tally, ScoresNameTheFirstFormats) {
  EXPECT_EQ(tally_.Scores(), "F1 oracle 0.750, one 0.500, two 0.500");
  EXPECT_THAT(tally_.prompt_lengths(), ElementsAre(10, 30));
  EXPECT_EQ(EvaluationTally({"a", "b", "c", "d"}, 1).Scores(), "F1 oracle 0.000, a 0.000, b 0.000, c 0.000");
}

}  // namespace
}  // namespace aludel
