#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/evaluate/evaluate.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

FormatResult Format(const char* name, double bytes, double f1, Interval loss) {
  return {
      .name = name, .bytes_per_token = bytes, .bytes_vs_raw = bytes / 1000, .f1 = f1, .f1_loss_ci95 = loss};
}

EvaluateReport Report(std::vector<FormatResult> formats) {
  return {.questions = 200, .oracle_f1 = 0.8, .formats = std::move(formats)};
}

TEST(Verdict, NamesTheSmallestFormatThatSurelyLosesLittle) {
  const EvaluateReport report =
      Report({Format("control", 0, 0.8, {0, 0}), Format("tiny", 2, 0.7, {0.05, 0.15}),
              Format("small", 10, 0.79, {-0.005, 0.015}), Format("raw", 1000, 0.8, {0, 0})});
  EXPECT_THAT(Verdict(report),
              ElementsAre(AllOf(StartsWith("small sends 1/100 of the raw cache's bytes, and its answers lose "
                                           "0.010 F1 (95 %: -0.005 to 0.015)"),
                                HasSubstr("200 questions"))));
}

TEST(Verdict, SaysWhereNoneIsSure) {
  const EvaluateReport report =
      Report({Format("tiny", 2, 0.7, {0.05, 0.15}), Format("int8", 510, 0.81, {-0.05, 0.03})});
  EXPECT_THAT(Verdict(report),
              ElementsAre(AllOf(HasSubstr("no format is sure"), HasSubstr("is int8: it sends 51 %"),
                                HasSubstr("answers gain 0.010 F1 (95 %: -0.030 to 0.050)"))));
}

TEST(Verdict, NamesTextsThatAFormatIsNotFor) {
  FormatResult control = Format("control", 0, 0.8, {0, 0}), good = Format("good", 10, 0.8, {0, 0}),
               bad = Format("bad", 5, 0.8, {0, 0}), broken = Format("broken", 500, 0.8, {0, 0});
  control.ppl = {20, 20};
  good.ppl = {10.4, 4.1};
  bad.ppl = {10.6, 4.2};
  broken.ppl = {10, std::nan("")};
  EvaluateReport report = Report({control, good, bad, broken});
  report.texts = {{"english.txt", 10}, {"code.txt", 4}};
  EXPECT_THAT(
      Verdict(report),
      ElementsAre(StartsWith("bad sends"),
                  AllOf(StartsWith("bad is not for prompts like english.txt (perplexity 1.060 times"),
                        Not(HasSubstr("code.txt"))),
                  AllOf(StartsWith("broken is not for"), HasSubstr("code.txt"), Not(HasSubstr("english")))));
}

TEST(Verdict, WarnsOfFewQuestions) {
  EvaluateReport report = Report({Format("raw", 1000, 0.8, {0, 0})});
  report.questions = 12;
  report.oracle_f1_ci95 = {0.6, 0.95};
  EXPECT_THAT(Verdict(report),
              ElementsAre(HasSubstr("raw sends as many bytes as the raw cache"),
                          AllOf(StartsWith("Only 12 questions"), HasSubstr("0.600 to 0.950"))));
}

TEST(Verdict, IsSilentOfControlsAlone) {
  EXPECT_TRUE(Verdict(Report({Format("control", 0, 0.8, {0, 0})})).empty());
}

}  // namespace
}  // namespace aludel
