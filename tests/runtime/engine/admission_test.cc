#include "runtime/engine/admission.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

const KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 2, .block_tokens = 16, .blocks = 40};

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  return std::string(status.message());
}

TEST(Admission, PromisesThePromptAndAFirstStretchNotTheWholeAnswer) {
  Admission admission(kLayout, 8);
  ASSERT_TRUE(admission.Admit(1, {.prompt_tokens = 100, .max_completion = 400}).ok());
  EXPECT_EQ(admission.promised_blocks(), 9);  // 132 tokens
  ASSERT_TRUE(admission.Admit(2, {.prompt_tokens = 100, .max_completion = 3}).ok());
  EXPECT_EQ(admission.promised_blocks(), 9 + 7);
  EXPECT_THAT(Refusal(admission.Admit(3, {.prompt_tokens = 400, .max_completion = 1})),
              HasSubstr("need 26 KV blocks, 24 of 40 are free"));
  admission.End(1, 1);
  EXPECT_EQ(admission.promised_blocks(), 7);
  EXPECT_TRUE(admission.Admit(3, {.prompt_tokens = 400, .max_completion = 1}).ok());
}

TEST(Admission, PromisesThePromptsFullBlocksOnceForAllChoices) {
  Admission admission(kLayout, 8);
  ASSERT_TRUE(admission.Admit(1, {.prompt_tokens = 100, .max_completion = 32, .choices = 4}).ok());
  EXPECT_EQ(admission.promised_blocks(), 6 + 4 * 3);
  admission.End(1, 3);
  EXPECT_EQ(admission.promised_blocks(), 6 + 3);
  admission.End(1, 1);
  EXPECT_EQ(admission.promised_blocks(), 0);
}

TEST(Admission, LimitsSequences) {
  Admission admission(kLayout, 3);
  ASSERT_TRUE(admission.Admit(1, {.prompt_tokens = 1, .max_completion = 1, .choices = 2}).ok());
  EXPECT_THAT(Refusal(admission.Admit(3, {.prompt_tokens = 1, .max_completion = 1, .choices = 2})),
              HasSubstr("2 sequences are admitted already and this request needs 2, the limit is 3"));
}

TEST(Admission, RefusesWhatCouldNotEndEvenAlone) {
  Admission admission(kLayout, 16);
  const absl::Status answer = admission.Admit(1, {.prompt_tokens = 16, .max_completion = 40 * 16});
  EXPECT_EQ(answer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.message()), HasSubstr("need 41 KV blocks, this server has 40"));
  const absl::Status choices =
      admission.Admit(1, {.prompt_tokens = 100, .max_completion = 100, .choices = 12});
  EXPECT_EQ(choices.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(choices.message()), HasSubstr("need 42 KV blocks"));
}

TEST(Admission, KeepsRoomForTheLongestAnswerBesideEverythingHandedOver) {
  Admission admission(kLayout, 8);
  ASSERT_TRUE(admission.Admit(1, {.prompt_tokens = 16, .max_completion = 24 * 16}).ok());  // 25 at its end
  ASSERT_TRUE(admission.Admit(2, {.prompt_tokens = 161, .max_completion = 1, .handed_over = 160}).ok());
  // 10 stay for request 2, and 25 + 10 + 6 would be too many.
  const RequestSize third{.prompt_tokens = 97, .max_completion = 1, .handed_over = 96};
  EXPECT_THAT(Refusal(admission.Admit(3, third)), HasSubstr("25 KV blocks beside 16 that are handed over"));
  // Exact ones can be computed again.
  EXPECT_TRUE(admission.Admit(3, {.prompt_tokens = 97, .max_completion = 1}).ok());
  admission.End(3, 1);
  // So can what falls back.
  admission.FallBack(2);
  EXPECT_TRUE(admission.Admit(3, third).ok());
  admission.End(1, 1);
  admission.End(2, 1);
  admission.End(3, 1);
  EXPECT_EQ(admission.promised_blocks(), 0);
}

}  // namespace
}  // namespace aludel
