#include "server/gateway/openai/answer/logprobs_json.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <utility>
#include <vector>

#include "tests/server/gateway/plain_models.h"

namespace aludel {
namespace {

using nlohmann::json;

// The token that was drawn, then the likeliest ones.
v1::Token Drawn(const std::vector<std::pair<int32_t, float>>& entries) {
  v1::Token token;
  token.set_id(entries[0].first);
  for (const auto& [id, value] : entries) {
    v1::TokenLogprob* logprob = token.add_logprobs();
    logprob->set_token(id);
    logprob->set_logprob(value);
  }
  return token;
}

class LogprobsJsonTest : public ::testing::Test {
 protected:
  // One token per byte, so that characters beyond ASCII take several.
  json All(bool chat, absl::string_view text) {
    LogprobsJson logprobs(chat, &tokenizer_);
    LogprobsText all;
    for (const char byte : text) {
      const int32_t id = static_cast<uint8_t>(byte);
      all.Append(logprobs.Make(Drawn({{id, -0.5f}, {id, -0.5f}})));
    }
    return Parsed(all);
  }
  static json Parsed(const LogprobsText& logprobs) {
    std::string text;
    logprobs.AppendTo(&text);
    EXPECT_LE(text.size(), logprobs.size());
    return json::parse(text);  // which throws where anything is not UTF-8
  }

  const ByteTokenizer tokenizer_;
};

TEST_F(LogprobsJsonTest, OffsetsCountCharactersOfTheText) {
  const json lists = All(/*chat=*/false, "h\xe2\x82\xac\xc3\xa9\xf0\x9f\x8e\xb5x");
  EXPECT_EQ(lists["text_offset"], json({0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4}));
}

TEST_F(LogprobsJsonTest, PartsOfACharacterAreSpeltByTheirBytes) {
  const json lists = All(/*chat=*/false, "h\xc3\xa9");
  EXPECT_EQ(lists["tokens"], json({"h", "bytes:\\xc3", "bytes:\\xa9"}));
  EXPECT_EQ(lists["top_logprobs"][1], json({{"bytes:\\xc3", -0.5}}));
  const json content = All(/*chat=*/true, "h\xc3\xa9")["content"];
  EXPECT_EQ(content[1]["token"], "\\xc3");
  EXPECT_EQ(content[1]["bytes"], json({0xc3}));
  EXPECT_EQ(content[2]["top_logprobs"][0]["token"], "\\xa9");
}

TEST_F(LogprobsJsonTest, AlternativesThatArePartsOfCharactersDoNotCollide) {
  LogprobsJson logprobs(/*chat=*/false, &tokenizer_);
  const json top = logprobs.Make(Drawn({{0xe2, -1}, {0xf0, -0.5f}, {0xe2, -1}}))["top_logprobs"][0];
  EXPECT_EQ(top, json({{"bytes:\\xf0", -0.5}, {"bytes:\\xe2", -1.0}}));
}

TEST_F(LogprobsJsonTest, TheTokenThatWasDrawnIsAmongTheOlderAlternatives) {
  LogprobsJson logprobs(/*chat=*/false, &tokenizer_);
  const json top = logprobs.Make(Drawn({{'z', -7}, {'a', -0.5f}, {'b', -1}}))["top_logprobs"][0];
  EXPECT_EQ(top, json({{"a", -0.5}, {"b", -1.0}, {"z", -7.0}}));
  LogprobsJson chat(/*chat=*/true, &tokenizer_);
  const json entry = chat.Make(Drawn({{'z', -7}, {'a', -0.5f}, {'b', -1}}))["content"][0];
  EXPECT_EQ(entry["token"], "z");
  EXPECT_EQ(entry["top_logprobs"].size(), 2);
}

TEST_F(LogprobsJsonTest, SpecialTokensHaveANameAndNoPlaceInTheText) {
  LogprobsJson logprobs(/*chat=*/false, &tokenizer_);
  LogprobsText all;
  for (const int32_t id : {97, 256, 98}) all.Append(logprobs.Make(Drawn({{id, -1}})));
  EXPECT_EQ(Parsed(all)["tokens"], json({"a", "<s>", "b"}));
  EXPECT_EQ(Parsed(all)["text_offset"], json({0, 1, 1}));
}

TEST_F(LogprobsJsonTest, AWholeAnswersLogprobsAreKeptAsTheirText) {
  EXPECT_TRUE(Parsed(LogprobsText()).is_null());
  LogprobsJson logprobs(/*chat=*/true, &tokenizer_);
  LogprobsText all;
  v1::Token token = Drawn({{'a', -0.123f}});
  for (int32_t id = 'a'; id < 'a' + 20; ++id) *token.add_logprobs() = token.logprobs(0);
  const std::string one = logprobs.Make(token).dump();
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = allocated();
  for (int i = 0; i < 1000; ++i) all.Append(logprobs.Make(token));
  EXPECT_LT(allocated() - before, 2 * 1000 * one.size());  // a string grows by doubling
  const json parsed = Parsed(all);
  EXPECT_EQ(parsed["content"].size(), 1000);
  EXPECT_EQ(parsed["content"][999]["top_logprobs"].size(), 20);
  EXPECT_TRUE(parsed["refusal"].is_null());
}

}  // namespace
}  // namespace aludel
