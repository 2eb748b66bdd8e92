#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json Token(const char* content, bool special) {
  return {{"content", content},  {"lstrip", false},      {"rstrip", false},
          {"normalized", false}, {"single_word", false}, {"special", special}};
}

// Tokens a, b and ab, <s> and </s> of which the first is an added token; and a tokenizer_config.json.
class TokenizerConfig : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() {
    directory_.Write("tokenizer.json", tokenizer_.dump());
    directory_.Write("tokenizer_config.json", config_.dump());
    warnings_.clear();
    return Tokenizer::Load(directory_.path(), &warnings_);
  }
  std::vector<int32_t> Encode(const char* text) {
    const auto tokenizer = Load();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text, true).value() : std::vector<int32_t>();
  }
  std::string Error() { return std::string(Load().status().message()); }
  // A post-processor that puts <s> before a text.
  void AddBos() {
    tokenizer_["post_processor"] = json::parse(
        R"({"type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [3]}},
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})");
  }

  TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
  json tokenizer_ = {
      {"added_tokens",
       json::array({{{"id", 3}, {"content", "<s>"}, {"special", true}, {"normalized", false}}})},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}, {"</s>", 4}, {"<", 5}, {"x", 6}, {">", 7}}},
        {"merges", {"a b"}}}}};
  json config_ = {{"tokenizer_class", "LlamaTokenizerFast"},
                  {"bos_token", "<s>"},
                  {"eos_token", {{"content", "</s>"}}},
                  {"unk_token", nullptr}};
};

TEST_F(TokenizerConfig, WithoutFlagsThePostProcessorOfTheTokenizerCounts) {
  EXPECT_THAT(Encode("ab"), ElementsAre(2));
  AddBos();
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2));
}

TEST_F(TokenizerConfig, LlamasClassesMakeTheirPostProcessorOfTheFlags) {
  config_["add_bos_token"] = true;
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2));
  config_["add_eos_token"] = true;
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2, 4));
  config_.erase("add_bos_token");
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2, 4)) << "BOS is the default of a flag that is left out";
  config_["tokenizer_class"] = "LlamaTokenizer";
  config_["add_bos_token"] = false;
  config_["add_eos_token"] = nullptr;
  AddBos();
  EXPECT_THAT(Encode("ab"), ElementsAre(2)) << "not what tokenizer.json says";
}

TEST_F(TokenizerConfig, AFlagWantsItsToken) {
  config_ = {{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}};
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2)) << "the class' own name for it";
  config_["unk_token"] = nullptr;
  config_["bos_token"] = "<begin>";
  EXPECT_THAT(Encode("ab"), ElementsAre(8, 2)) << "a new token";
  config_["bos_token"] = nullptr;
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json: bos_token is empty"));
  config_["add_bos_token"] = "yes";
  EXPECT_THAT(Error(), HasSubstr("add_bos_token is \"yes\", want true or false"));
}

TEST_F(TokenizerConfig, ForOtherClassesTheTokenizerDecides) {
  config_["tokenizer_class"] = "PreTrainedTokenizerFast";
  config_["add_bos_token"] = false;
  EXPECT_THAT(Encode("ab"), ElementsAre(2));
  EXPECT_THAT(warnings_, IsEmpty());
  AddBos();
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2));
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("tokenizer_config.json: add_bos_token is false"),
                                           HasSubstr("adds tokens before a text"))));
  config_["add_bos_token"] = true;
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2));
  EXPECT_THAT(warnings_, IsEmpty());
  config_["add_eos_token"] = true;
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2));
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("add_eos_token is true"), HasSubstr("adds nothing after a text"))));
}

TEST_F(TokenizerConfig, AddsTheTokensThatTheTokenizerLacks) {
  config_["added_tokens_decoder"] = {{"8", Token("<x>", true)},
                                     {"9", Token("<xx>", false)},
                                     {"3", Token("<s>", true)},
                                     {"4", Token("</s>", true)}};
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 10);
  EXPECT_THAT((*tokenizer)->Encode("a<x><xx></s>b", false).value(), ElementsAre(0, 8, 9, 4, 1));
  EXPECT_TRUE((*tokenizer)->IsSpecial(8));
  EXPECT_TRUE((*tokenizer)->IsSpecial(4));
  EXPECT_FALSE((*tokenizer)->IsSpecial(9));
}

TEST_F(TokenizerConfig, FlagsOfTheConfigReplaceThoseOfTheTokenizer) {
  json token = Token("<s>", false);
  token["rstrip"] = true;
  config_["added_tokens_decoder"] = {{"3", token}};
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<s>  a", false).value(), ElementsAre(3, 0));
  EXPECT_TRUE((*tokenizer)->IsSpecial(3)) << "once special, always special";
}

TEST_F(TokenizerConfig, AddsTheSpecialTokensThatTheTokenizerLacks) {
  config_["pad_token"] = "<newpad>";
  config_["unk_token"] = "<newpad>";
  config_["additional_special_tokens"] = {"<tool>", {{"content", "<image>"}, {"rstrip", true}}, "<s>"};
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("a<tool>b<newpad><image> a</s>", false).value(),
              ElementsAre(0, 9, 1, 8, 10, 0, 4));
  for (const int32_t id : {3, 4, 8, 9, 10}) EXPECT_TRUE((*tokenizer)->IsSpecial(id)) << id;
  EXPECT_EQ((*tokenizer)->vocab_size(), 11);

  config_["added_tokens_decoder"] = {{"8", Token("<x>", false)}};
  tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<x><newpad><tool>", false).value(), ElementsAre(8, 9, 10));
}

TEST_F(TokenizerConfig, NamesASpecialTokenThatIsNone) {
  config_["pad_token"] = 3;
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json: pad_token is 3"));
  config_.erase("pad_token");
  config_["additional_special_tokens"] = json::array({7});
  EXPECT_THAT(Error(), HasSubstr("additional_special_tokens is 7, want a token"));
  config_.erase("additional_special_tokens");
  config_["extra_special_tokens"] = {{"image_token", "<image>"}};
  EXPECT_EQ(Error(), "");
  config_["extra_special_tokens"]["video_token"] = "<video>";
  EXPECT_THAT(Error(), AllOf(HasSubstr("extra_special_tokens is an object"), HasSubstr("want an array")));
}

TEST_F(TokenizerConfig, TheMapOfSpecialTokensCountsWithoutAddedTokensDecoder) {
  directory_.Write("special_tokens_map.json",
                   R"({"pad_token": {"content": "<map>"}, "additional_special_tokens": ["<b>"]})");
  config_["pad_token"] = "<pad>";
  config_["additional_special_tokens"] = json::array({"<a>"});
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->TokenToId("<map>"), 8);
  EXPECT_EQ((*tokenizer)->TokenToId("<pad>"), -1);
  EXPECT_EQ((*tokenizer)->TokenToId("<a>"), 9);
  EXPECT_EQ((*tokenizer)->TokenToId("<b>"), 10);
  config_["added_tokens_decoder"] = json::object();
  tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->TokenToId("<map>"), -1);
  config_.erase("added_tokens_decoder");
  directory_.Write("special_tokens_map.json", R"({"pad_token": 1})");
  EXPECT_THAT(Error(), HasSubstr("special_tokens_map.json: pad_token is 1"));
}

TEST_F(TokenizerConfig, LlamasClassesNameTheirTokens) {
  config_ = {{"tokenizer_class", "LlamaTokenizer"}};
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->IsSpecial(4));
  EXPECT_EQ((*tokenizer)->TokenToId("<unk>"), 8);
}

TEST_F(TokenizerConfig, NamesATokenThatWouldGetAnotherId) {
  config_["added_tokens_decoder"] = {{"9", Token("<x>", true)}};
  EXPECT_THAT(Error(), HasSubstr("added_tokens_decoder[9]: id of \"<x>\" is 9, want 8"));
  config_["added_tokens_decoder"] = {{"5", Token("</s>", true)}};
  EXPECT_THAT(Error(), HasSubstr("id of \"</s>\" is 5, want 4, which tokenizer.json gives it"));
  config_["added_tokens_decoder"] = {{"x", Token("</s>", true)}};
  EXPECT_THAT(Error(), HasSubstr("holds \"x\""));
  config_["added_tokens_decoder"] = {{"8", {{"special", true}}}};
  EXPECT_THAT(Error(), HasSubstr("content is missing"));
  config_["added_tokens_decoder"] = json::array();
  EXPECT_THAT(Error(), HasSubstr("added_tokens_decoder is"));
  config_ = json::array();
  EXPECT_THAT(Error(), HasSubstr("want an object"));
}

TEST_F(TokenizerConfig, NamesATokenizerThatIsNotRead) {
  for (const char* name : {"tokenizer.model", "tekken.json"}) {
    TemporaryDirectory directory;
    directory.Write(name, "x");
    const absl::Status status = Tokenizer::Load(directory.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("tokenizer.json"), HasSubstr(name), HasSubstr("save_pretrained")));
  }
}

}  // namespace
}  // namespace aludel
