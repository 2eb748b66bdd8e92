#include "server/gateway/openai/answer/prompt_echo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/server/gateway/plain_models.h"

namespace aludel {
namespace {

using nlohmann::json;

// Token i of `ids` has the logarithm -i, rank 2, and before it the likelier `best`.
v1::PromptLogprobs Piece(const std::vector<int32_t>& ids, uint32_t begin, uint32_t end, int32_t best) {
  v1::PromptLogprobs piece;
  piece.set_begin(begin);
  piece.set_top(1);
  for (uint32_t i = begin; i < end; ++i) {
    piece.add_ranks(2);
    piece.add_tokens(ids[i]);
    piece.add_logprobs(-static_cast<float>(i));
    piece.add_tokens(best);
    piece.add_logprobs(-0.5f);
  }
  return piece;
}

class PromptEchoTest : public ::testing::Test {
 protected:
  void Use(const std::string& text, bool begins_special) {
    options_ = {.ids = tokenizer_.Encode(text, begins_special).value(), .echo = true, .text = text};
    options_.echo_logprobs = 1;
    options_.prompt_logprobs = 1;
    echo_ = std::make_unique<PromptEcho>(&options_, &tokenizer_);
  }
  void AddAll() {
    const auto size = static_cast<uint32_t>(options_.ids.size());
    echo_->Add(Piece(options_.ids, 1, size / 2, 'q'));
    echo_->Add(Piece(options_.ids, size / 2, size, 'q'));
  }
  std::vector<ChoiceDelta> Deltas(size_t most = SIZE_MAX) {
    std::vector<ChoiceDelta> deltas;
    echo_->ForEachDelta([&](const ChoiceDelta& delta) {
      deltas.push_back(delta);
      return deltas.size() < most;
    });
    return deltas;
  }
  // The echo's lists, joined.
  json Lists() {
    json all;
    for (const ChoiceDelta& delta : Deltas()) {
      for (const auto& [name, list] : delta.logprobs.items()) {
        for (const auto& value : list) all[name].push_back(json(value));
      }
    }
    return all;
  }

  ByteTokenizer tokenizer_;
  PromptEcho::Options options_;
  std::unique_ptr<PromptEcho> echo_;
};

TEST_F(PromptEchoTest, HasTheTextInItsFirstDeltaAndEveryTokenOnce) {
  Use(std::string(300, 'a'), /*begins_special=*/true);
  AddAll();
  const std::vector<ChoiceDelta> deltas = Deltas();
  ASSERT_EQ(deltas.size(), 3);
  EXPECT_EQ(deltas[0].text, std::string(300, 'a'));
  EXPECT_EQ(deltas[1].text + deltas[2].text, "");
  const json lists = Lists();
  ASSERT_EQ(lists["tokens"].size(), 301);
  EXPECT_EQ(lists["tokens"][0], "<s>");
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  EXPECT_TRUE(lists["top_logprobs"][0].is_null());
  for (int i = 1; i <= 300; ++i) {
    EXPECT_EQ(lists["token_logprobs"][i], -i);
    EXPECT_EQ(lists["top_logprobs"][i], json({{"q", -0.5}, {"a", -i}}));
    EXPECT_EQ(lists["text_offset"][i], i - 1);
  }
  EXPECT_EQ(echo_->characters(), 300);
}

TEST_F(PromptEchoTest, EndsWhereNoMoreIsTaken) {
  Use(std::string(3000, 'a'), /*begins_special=*/true);
  AddAll();
  EXPECT_EQ(Deltas(/*most=*/2).size(), 2);
  const std::string whole = echo_->PromptLogprobsJson(SIZE_MAX);
  const std::string cut = echo_->PromptLogprobsJson(1000);
  EXPECT_GT(whole.size(), 100000);
  EXPECT_GT(cut.size(), 1000);
  EXPECT_LT(cut.size(), 1300);
}

TEST_F(PromptEchoTest, KeepsPiecesUntilTheyAreForgotten) {
  Use(std::string(100, 'a'), /*begins_special=*/true);
  EXPECT_EQ(echo_->bytes(), 0);
  AddAll();
  EXPECT_EQ(echo_->bytes(), 100 * (4 + 2 * 8));
  echo_->Forget();
  EXPECT_EQ(echo_->bytes(), 0);
  AddAll();  // of another server
  EXPECT_EQ(Lists()["token_logprobs"][100], -100);
}

TEST_F(PromptEchoTest, OffsetsCountCharactersAndNotBytes) {
  Use("a\xe2\x82\xac"
      "b",
      /*begins_special=*/false);
  AddAll();
  EXPECT_EQ(Lists()["text_offset"], json({0, 1, 1, 1, 2}));
  EXPECT_EQ(echo_->characters(), 3);
}

TEST_F(PromptEchoTest, IsVllmsListToo) {
  Use("ab", /*begins_special=*/true);
  AddAll();
  EXPECT_EQ(json::parse(echo_->PromptLogprobsJson(SIZE_MAX)), json::parse(R"([null,
                {"97": {"logprob": -1.0, "rank": 2, "decoded_token": "a"},
                 "113": {"logprob": -0.5, "rank": 1, "decoded_token": "q"}},
                {"98": {"logprob": -2.0, "rank": 2, "decoded_token": "b"},
                 "113": {"logprob": -0.5, "rank": 1, "decoded_token": "q"}}])"));
}

TEST_F(PromptEchoTest, WhatAModelRulesOutIsANumberInJson) {
  Use("ab", /*begins_special=*/false);
  v1::PromptLogprobs piece = Piece(options_.ids, 1, 2, 'q');
  piece.set_logprobs(0, -std::numeric_limits<float>::infinity());
  echo_->Add(piece);
  EXPECT_EQ(Lists()["token_logprobs"][1], -9999.0);
  EXPECT_EQ(json::parse(echo_->PromptLogprobsJson(SIZE_MAX))[1]["98"]["logprob"], -9999.0);
}

TEST_F(PromptEchoTest, BeginsAnewWhereAnotherServerTakesOver) {
  Use("abcdef", /*begins_special=*/true);
  echo_->Add(Piece(options_.ids, 1, 5, 'z'));
  AddAll();
  EXPECT_EQ(Lists()["top_logprobs"][1], json({{"q", -0.5}, {"a", -1}}));
}

TEST_F(PromptEchoTest, PiecesOfAServerThatBreaksTheProtocolAreDropped) {
  Use("abcdef", /*begins_special=*/true);
  v1::PromptLogprobs one_short = Piece(options_.ids, 1, 3, 'q');
  one_short.mutable_logprobs()->RemoveLast();
  v1::PromptLogprobs huge = Piece(options_.ids, 1, 3, 'q');
  huge.set_top(4294967295);
  v1::PromptLogprobs too_many = Piece(options_.ids, 1, 7, 'q');
  too_many.MergeFrom(Piece(options_.ids, 1, 7, 'q'));
  for (const v1::PromptLogprobs& broken : {one_short, huge, too_many, Piece(options_.ids, 3, 5, 'q')}) {
    echo_->Add(broken);
    EXPECT_TRUE(Lists()["token_logprobs"][1].is_null());
    EXPECT_EQ(Lists()["tokens"].size(), 7);
    EXPECT_TRUE(json::parse(echo_->PromptLogprobsJson(SIZE_MAX))[1].is_null());
  }
}

}  // namespace
}  // namespace aludel
