#include "runtime/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Characters a, b, c and space, and the tokens ab, abc, bc; no normalizer, no pre-tokenizer.
json Small() {
  return {{"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {" ", 3}, {"bc", 4}, {"ab", 5}, {"abc", 6}}},
            {"merges", {"b c", "a b", "ab c"}}}}};
}

json AddedToken(int id, const char* content) {
  return {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
}

std::unique_ptr<Tokenizer> Make(const json& config) {
  auto result = Tokenizer::FromJson(config.dump(), "tokenizer.json");
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : nullptr;
}

std::string Error(const json& config) {
  return std::string(Tokenizer::FromJson(config.dump(), "tokenizer.json").status().message());
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text) {
  auto ids = tokenizer.Encode(text, false);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

TEST(Tokenizer, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  const auto tokenizer = Make(Small());
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(0, 4)) << "'b c' ranks before 'a b'";
  EXPECT_THAT(Encode(*tokenizer, "abab"), ElementsAre(5, 5));
  EXPECT_THAT(Encode(*tokenizer, ""), IsEmpty());
}

TEST(Tokenizer, MergesLongPiecesAsShortOnes) {
  const auto tokenizer = Make(Small());
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 1000; ++i) {
    text += i % 3 == 0 ? "ab" : "abc";
    expected.insert(expected.end(),
                    i % 3 == 0 ? std::initializer_list<int32_t>{5} : std::initializer_list<int32_t>{0, 4});
  }
  EXPECT_EQ(Encode(*tokenizer, text), expected);
}

TEST(Tokenizer, ReadsBothSpellingsOfMerges) {
  json config = Small();
  config["model"]["merges"] = json::parse(R"([["b","c"],["a","b"],["ab","c"]])");
  EXPECT_EQ(Make(config)->fingerprint(), Make(Small())->fingerprint());
}

TEST(Tokenizer, IgnoresMergesWhereThePieceIsAToken) {
  json config = Small();
  config["model"]["ignore_merges"] = true;
  EXPECT_THAT(Encode(*Make(config), "abc"), ElementsAre(6));
}

TEST(Tokenizer, FindsTheLongestAddedTokenFirst) {
  json config = Small();
  config["added_tokens"] = {AddedToken(7, "<x"), AddedToken(8, "<xy>"), AddedToken(5, "ab")};
  const auto tokenizer = Make(config);
  EXPECT_THAT(Encode(*tokenizer, "a<xy>b"), ElementsAre(0, 8, 1));
  EXPECT_THAT(Encode(*tokenizer, "<x<xy>"), ElementsAre(7, 8));
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(5, 2)) << "an added token of the vocabulary cuts too";
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->TokenToId("<xy>"), 8);
  EXPECT_EQ(tokenizer->TokenToId("nothing"), -1);
}

TEST(Tokenizer, StripsAndChecksWordsAroundAddedTokens) {
  json config = Small();
  json strip = AddedToken(7, "|");
  strip["lstrip"] = strip["rstrip"] = true;
  json word = AddedToken(8, "bb");
  word["single_word"] = true;
  config["added_tokens"] = {strip, word};
  const auto tokenizer = Make(config);
  EXPECT_THAT(Encode(*tokenizer, "a  |  b"), ElementsAre(0, 7, 1));
  EXPECT_THAT(Encode(*tokenizer, "a bb c"), ElementsAre(0, 3, 8, 3, 2));
  EXPECT_THAT(Encode(*tokenizer, "abb"), ElementsAre(5, 1)) << "a word character touches it";
}

TEST(Tokenizer, KnowsSpecialTokensAndLeavesThemOut) {
  json config = Small();
  config["added_tokens"] = {AddedToken(7, "<s>"), AddedToken(8, "<t>")};
  config["added_tokens"][0]["special"] = true;
  const auto tokenizer = Make(config);
  EXPECT_TRUE(tokenizer->IsSpecial(7));
  EXPECT_FALSE(tokenizer->IsSpecial(8));
  EXPECT_EQ(tokenizer->Decode({7, 0, 8}, false), "<s>a<t>");
  EXPECT_EQ(tokenizer->Decode({7, 0, 8}, true), "a<t>");
  EXPECT_EQ(tokenizer->Decode({-1, 0, 99}, true), "a") << "ids out of range are skipped";
}

TEST(Tokenizer, RefusesTextItCannotSpell) {
  const auto tokenizer = Make(Small());
  EXPECT_THAT(std::string(tokenizer->Encode("a\xc3", false).status().message()),
              HasSubstr("not UTF-8 at byte 1"));
  EXPECT_THAT(std::string(tokenizer->Encode("a\xed\xa0\x80", false).status().message()), HasSubstr("byte 1"));
  EXPECT_THAT(std::string(tokenizer->Encode("a\xe2\x82\xac", false).status().message()), HasSubstr("U+20AC"));
}

TEST(Tokenizer, NamesWhatAFileHasAndWhatIsSupported) {
  const auto with = [](const char* field, const char* value) {
    json config = Small();
    config[field] = json::parse(value);
    return Error(config);
  };
  EXPECT_THAT(with("normalizer", R"({"type":"BertNormalizer"})"),
              AllOf(HasSubstr("tokenizer.json: normalizer"), HasSubstr("BertNormalizer"), HasSubstr("NFC")));
  EXPECT_THAT(with("pre_tokenizer", R"({"type":"Whitespace"})"),
              AllOf(HasSubstr("pre_tokenizer"), HasSubstr("Split")));
  EXPECT_THAT(with("pre_tokenizer",
                   R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"),
              HasSubstr("Digits follows ByteLevel"));
  EXPECT_THAT(with("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Maybe"})"),
              HasSubstr("Maybe"));
  EXPECT_THAT(with("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
              AllOf(HasSubstr("regex /(/"), HasSubstr("parenthesis")));
  EXPECT_THAT(with("decoder", R"({"type":"CTC"})"), AllOf(HasSubstr("decoder"), HasSubstr("CTC")));
  EXPECT_THAT(with("post_processor", R"({"type":"BertProcessing"})"), HasSubstr("BertProcessing"));
  EXPECT_THAT(with("novelty", "1"), HasSubstr("novelty (1) is not supported"));
  EXPECT_THAT(with("added_tokens", R"([{"id":9}])"), HasSubstr("added_tokens[0]: content is empty"));
  EXPECT_THAT(with("added_tokens", R"([{"id":1,"content":"a"}])"),
              AllOf(HasSubstr("id is 1"), HasSubstr("gives it 0")));
  EXPECT_THAT(with("added_tokens", R"([{"id":1,"content":"x"}])"), HasSubstr("already belongs to \"b\""));
  EXPECT_THAT(with("model", "null"), HasSubstr("model is missing"));
}

TEST(Tokenizer, NamesWhatIsWrongWithAModel) {
  const auto with = [](const char* field, const char* value) {
    json config = Small();
    config["model"][field] = json::parse(value);
    return Error(config);
  };
  EXPECT_THAT(with("type", "\"Unigram\""),
              AllOf(HasSubstr("model"), HasSubstr("Unigram"), HasSubstr("want \"BPE\"")));
  EXPECT_THAT(with("dropout", "0.1"), HasSubstr("dropout is 0.1"));
  EXPECT_THAT(with("end_of_word_suffix", "\"</w>\""), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(with("unk_token", "\"?\""), HasSubstr("unk_token \"?\" is not in the vocabulary"));
  EXPECT_THAT(with("merges", R"(["a"])"), HasSubstr("merges[0]"));
  EXPECT_THAT(with("merges", R"(["a b c"])"), HasSubstr("merges[0]"));
  EXPECT_THAT(with("merges", R"(["a b","c a"])"), HasSubstr("merges[1]: \"ca\" is not in the vocabulary"));
  EXPECT_THAT(with("vocab", R"({"a":-1})"), HasSubstr("id of \"a\" is -1"));
  EXPECT_THAT(with("vocab", R"({"a":99999999999})"), HasSubstr("99999999999"));
  EXPECT_THAT(with("vocab", R"({"a":0,"b":0})"), HasSubstr("id 0 belongs to"));
  EXPECT_THAT(with("vocab", "{}"), HasSubstr("vocab"));
}

TEST(Tokenizer, EveryTruncationOfAFileIsAnError) {
  const std::string whole = Small().dump();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(Tokenizer::FromJson(whole.substr(0, bytes), "tokenizer.json").ok()) << bytes;
  }
  TemporaryDirectory directory;
  EXPECT_EQ(Tokenizer::Load(directory.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST(Tokenizer, FingerprintFollowsVocabularyMergesAndAddedTokens) {
  const std::string fingerprint = Make(Small())->fingerprint();
  EXPECT_EQ(fingerprint.size(), 64);
  json other = Small();
  other["decoder"] = nullptr;
  EXPECT_EQ(Make(other)->fingerprint(), fingerprint) << "the ids mean the same";
  other = Small();
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["b"]);
  EXPECT_NE(Make(other)->fingerprint(), fingerprint);
  other = Small();
  std::swap(other["model"]["merges"][0], other["model"]["merges"][1]);
  EXPECT_NE(Make(other)->fingerprint(), fingerprint);
  other = Small();
  other["added_tokens"] = {AddedToken(7, "<s>")};
  EXPECT_NE(Make(other)->fingerprint(), fingerprint);
}

TEST(Tokenizer, VocabularyFingerprintLeavesAddedTokensOut) {
  const std::string fingerprint = Make(Small())->vocabulary_fingerprint();
  EXPECT_EQ(fingerprint.size(), 64);
  EXPECT_NE(fingerprint, Make(Small())->fingerprint());
  json other = Small();
  other["added_tokens"] = {AddedToken(5, "ab"), AddedToken(7, "<s>")};
  EXPECT_EQ(Make(other)->vocabulary_fingerprint(), fingerprint);
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["b"]);
  EXPECT_NE(Make(other)->vocabulary_fingerprint(), fingerprint);
  other = Small();
  std::swap(other["model"]["merges"][0], other["model"]["merges"][1]);
  EXPECT_NE(Make(other)->vocabulary_fingerprint(), fingerprint);
}

TEST(Tokenizer, StopsARegexThatBacktracksWithoutEnd) {
  json config = Small();
  config["pre_tokenizer"] =
      json::parse(R"({"type":"Split","pattern":{"Regex":"(a+)+[bc]$"},"behavior":"Isolated"})");
  const auto ids = Make(config)->Encode(std::string(40, 'a'), false);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kResourceExhausted) << ids.status();
}

TEST(Tokenizer, CountsAsOneAcrossThreads) {
  auto loaded = Tokenizer::Load("deploy/demo/chat");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  const std::vector<int32_t> expected = Encode(tokenizer, "The painter was born in Velkin.");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        EXPECT_EQ(Encode(tokenizer, "The painter was born in Velkin."), expected);
        EXPECT_EQ(tokenizer.Decode(expected, true), "The painter was born in Velkin.");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class StreamDecoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load("deploy/demo/chat");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    for (int byte = 0; byte < 256; ++byte) {
      // A single byte of the demo vocabulary, found by its GPT-2 spelling.
      byte_ids_[byte] = -1;
    }
    for (int id = 5; id < 5 + 256; ++id) {
      const std::string spelling = tokenizer_->Decode({id}, false);
      if (spelling.size() == 1) byte_ids_[static_cast<uint8_t>(spelling[0])] = id;
    }
    const std::vector<int32_t> smile = Encode(*tokenizer_, "\xf0\x9f\x98\x80");
    ASSERT_EQ(smile.size(), 4) << "no merge makes this character in the demo vocabulary";
    smile_ = smile;
  }
  int32_t Byte(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }

  std::unique_ptr<Tokenizer> tokenizer_;
  int32_t byte_ids_[256];
  std::vector<int32_t> smile_;
};

TEST_F(StreamDecoderTest, HoldsACharacterUntilItIsWhole) {
  StreamDecoder stream(tokenizer_.get());
  EXPECT_EQ(stream.Push(Byte('a')), "a");
  EXPECT_EQ(stream.Push(smile_[0]), "");
  EXPECT_EQ(stream.Push(smile_[1]), "");
  EXPECT_EQ(stream.Push(smile_[2]), "");
  EXPECT_EQ(stream.Push(smile_[3]), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.Flush(), "");
}

TEST_F(StreamDecoderTest, FlushesABrokenCharacterAsReplacement) {
  StreamDecoder stream(tokenizer_.get());
  stream.Push(smile_[0]);
  stream.Push(smile_[1]);
  EXPECT_EQ(stream.Flush(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.Push(Byte('b')), "b") << "a flushed stream starts anew";
}

TEST_F(StreamDecoderTest, GivesUpBytesThatNeverBecomeACharacterButNotTheNextOne) {
  StreamDecoder stream(tokenizer_.get());
  std::vector<int32_t> ids(11, smile_[3]);  // continuation bytes
  ids.insert(ids.end(), smile_.begin(), smile_.end());
  std::string text;
  size_t longest_wait = 0;
  size_t wait = 0;
  for (const int32_t id : ids) {
    const std::string piece = stream.Push(id);
    wait = piece.empty() ? wait + 1 : 0;
    longest_wait = std::max(longest_wait, wait);
    text += piece;
  }
  EXPECT_LE(longest_wait, 4);
  EXPECT_EQ(text, tokenizer_->Decode(ids, true));
}

TEST_F(StreamDecoderTest, SkipsSpecialTokensAndIdsOutOfRange) {
  StreamDecoder stream(tokenizer_.get());
  EXPECT_EQ(stream.Push(tokenizer_->TokenToId("<|end|>")), "");
  EXPECT_EQ(stream.Push(-7), "");
  EXPECT_EQ(stream.Push(1 << 30), "");
  EXPECT_EQ(stream.Push(Byte('x')), "x");
}

TEST(StreamDecoder, ARealReplacementCharacterAmongFallbackBytesBreaksNothing) {
  const auto tokenizer = Tokenizer::Load("tests/runtime/text/reference/llama2");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "\u76f0\U0001695c\ufffd\U0001ec51\U0002a783\ufffd\ufffd\ufdfa";
  StreamDecoder stream(tokenizer->get());
  std::string streamed;
  const std::vector<int32_t> ids = (*tokenizer)->Encode(text, false).value();
  for (const int32_t id : ids) streamed += stream.Push(id);
  EXPECT_EQ(streamed + stream.Flush(), text);
}

TEST(StreamDecoder, KeepsTheSpacesThatAStrippingDecoderDropsAtTheStartOnly) {
  auto loaded = Tokenizer::Load("tests/runtime/text/reference/llama2");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::vector<int32_t> ids = Encode(**loaded, " the  end");
  StreamDecoder stream(loaded->get());
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  EXPECT_EQ(text + stream.Flush(), " the  end");
}

}  // namespace
}  // namespace aludel
