#include "runtime/engine/engine_front.h"

#include <thread>

#include "gtest/gtest.h"

namespace aludel {
namespace {

class EngineFrontTest : public ::testing::Test {
 protected:
  absl::StatusOr<SequenceId> Admit(int choices, int64_t prompt_tokens = 4) {
    auto group = std::make_shared<ChoiceGroup>();
    group->sampling.choices = choices;
    auto sequence = std::make_unique<Sequence>(std::vector<int32_t>(prompt_tokens, 1), /*max_completion=*/4,
                                               /*listener=*/nullptr, group, 0, /*tokenizer=*/nullptr);
    return front_.Admit(std::move(sequence),
                        {.prompt_tokens = prompt_tokens, .max_completion = 4, .choices = choices},
                        [this](std::unique_ptr<Sequence> begun) { begun_.push_back(std::move(begun)); });
  }
  void RunCommands() {
    std::vector<EngineFront::Command> commands;
    ASSERT_TRUE(front_.Take(absl::ZeroDuration(), &commands));
    for (const auto& command : commands) command();
  }

  const KvLayout layout_{
      .layers = 1, .kv_heads = 1, .head_dim = 2, .block_tokens = 4, .blocks = 16, .dtype = DType::kF32};
  EngineFront front_{layout_, /*max_num_seqs=*/4};
  std::vector<std::unique_ptr<Sequence>> begun_;
};

TEST_F(EngineFrontTest, GivesEveryChoiceAnIdAndBeginsInOrder) {
  const SequenceId first = Admit(3).value();
  const SequenceId second = Admit(1).value();
  EXPECT_EQ(second, first + 3);
  EXPECT_EQ(front_.NewId(), second + 1);
  EXPECT_TRUE(begun_.empty());
  RunCommands();
  ASSERT_EQ(begun_.size(), 2);
  EXPECT_EQ(begun_[0]->id, first);
  EXPECT_EQ(begun_[0]->group->request, first);
  EXPECT_EQ(begun_[1]->id, second);
}

TEST_F(EngineFrontTest, RefusesWhatDoesNotFitAndTakesItWhenOthersHaveEnded) {
  const SequenceId first = Admit(4).value();
  EXPECT_GT(front_.promised_blocks(), 0);
  const auto refused = Admit(1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  front_.End(first, 4);
  EXPECT_EQ(front_.promised_blocks(), 0);
  EXPECT_EQ(Admit(1).value(), first + 4);  // the refused one took no id
  RunCommands();
  EXPECT_EQ(begun_.size(), 2);
}

TEST_F(EngineFrontTest, PublishesStatisticsWithWhatIsReserved) {
  EXPECT_EQ(front_.stats().kv_blocks_total, 16);
  ASSERT_TRUE(Admit(1).ok());
  EngineStats stats;
  stats.steps = 7;
  const auto before = front_.stats().last_progress;
  front_.Publish(stats);
  EXPECT_EQ(front_.stats().steps, 7);
  EXPECT_EQ(front_.stats().kv_blocks_reserved, front_.promised_blocks());
  EXPECT_GE(front_.stats().last_progress, before);
}

TEST_F(EngineFrontTest, WakesTheThreadForACommandAndForTheEnd) {
  int ran = 0;
  std::thread thread([&] {
    std::vector<EngineFront::Command> commands;
    while (front_.Take(absl::Seconds(100), &commands)) {
      for (const auto& command : commands) command();
      if (ran == 1) front_.Stop();
    }
  });
  front_.Post([&] { ++ran; });
  thread.join();
  EXPECT_EQ(ran, 1);
  // What came too late is handed out once, to be ended.
  front_.Post([&] { ++ran; });
  for (const auto& command : front_.TakeRest()) command();
  EXPECT_EQ(ran, 2);
  EXPECT_TRUE(front_.TakeRest().empty());
}

}  // namespace
}  // namespace aludel
