#include "runtime/evaluate/evaluation_log.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

class Log : public ::testing::Test {
 protected:
  static QuestionRecord Record(double f1) {
    FormatRecord format;
    format.answer = {5, 2};
    format.f1 = f1;
    format.kl = {0.1, 1.0 / 3.0};
    format.tv = {1e-17, 0.25};
    format.bytes = 4096;
    format.errors = {{{1, 2}, {3, 4}, {5, 6}, {7, 8}}};
    format.shares = {{0, 2, "code", 40}, {0, 1, "header", 80}};
    return {.prompt_tokens = 17,
            .f1 = f1,
            .em = 1,
            .answer = {7, 2},
            .local_seconds = 0.25,
            .producer_seconds = 0.5,
            .formats = {format}};
  }

  void Write(int records) {
    std::vector<QuestionRecord> none;
    auto log = EvaluationLog::Open(path_, "an evaluation", false, &none);
    ASSERT_TRUE(log.ok()) << log.status();
    for (int i = 0; i < records; ++i) ASSERT_TRUE((*log)->Append(Record(1.0 / (i + 3))).ok());
  }

  const std::string path_ =
      ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
};

TEST_F(Log, GivesBackExactlyWhatItTook) {
  Write(2);
  std::vector<QuestionRecord> records;
  ASSERT_TRUE(EvaluationLog::Open(path_, "an evaluation", true, &records).ok());
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[1].prompt_tokens, 17);
  EXPECT_EQ(records[1].f1, 0.25);
  EXPECT_THAT(records[1].answer, ::testing::ElementsAre(7, 2));
  EXPECT_EQ(records[1].local_seconds, 0.25);
  EXPECT_EQ(records[1].producer_seconds, 0.5);
  const FormatRecord& format = records[0].formats[0];
  EXPECT_THAT(format.answer, ::testing::ElementsAre(5, 2));
  EXPECT_EQ(format.kl[1], 1.0 / 3.0);
  EXPECT_EQ(format.tv[0], 1e-17);
  EXPECT_EQ(format.errors[0].output.energy, 8);
  EXPECT_EQ(format.shares[0].part, "code");
  EXPECT_EQ(format.shares[1].bytes, 80);
}

TEST_F(Log, CutsOffATornLineAndGoesOn) {
  Write(2);
  std::ofstream(path_, std::ios::app) << "{\"prompt_tokens\": 9, \"f1";
  std::vector<QuestionRecord> records;
  auto log = EvaluationLog::Open(path_, "an evaluation", true, &records);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(records.size(), 2);
  ASSERT_TRUE((*log)->Append(Record(1)).ok());
  records.clear();
  ASSERT_TRUE(EvaluationLog::Open(path_, "an evaluation", true, &records).ok());
  EXPECT_EQ(records.size(), 3);
}

TEST_F(Log, RefusesRecordsOfAnotherEvaluation) {
  Write(1);
  std::vector<QuestionRecord> records;
  EXPECT_THAT(std::string(EvaluationLog::Open(path_, "another one", true, &records).status().message()),
              HasSubstr("holds another evaluation"));
  // Unless asked to start anew.
  EXPECT_TRUE(EvaluationLog::Open(path_, "another one", false, &records).ok());
  EXPECT_TRUE(records.empty());
}

TEST_F(Log, NamesTheLineThatIsNoRecord) {
  Write(1);
  std::ofstream(path_, std::ios::app) << "{\"prompt_tokens\": \"many\"}\n";
  std::vector<QuestionRecord> records;
  EXPECT_THAT(std::string(EvaluationLog::Open(path_, "an evaluation", true, &records).status().message()),
              HasSubstr(".jsonl:3"));
}

}  // namespace
}  // namespace aludel
