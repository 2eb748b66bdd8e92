#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "runtime/model/tokenizer.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    return Tokenizer::Load(directory_.path());
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
  json tokenizer_ = {
      {"added_tokens",
       json::array({{{"id", 3}, {"content", "<s>"}, {"special", true}, {"normalized", false}}})},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}, {"</s>", 4}, {"<", 5}, {"x", 6}, {">", 7}}},
        {"merges", {"a b"}}}}};
  json config_ = {
      {"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
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
  config_["bos_token"] = "<begin>";
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("tokenizer_config.json: bos_token is \"<begin>\""), HasSubstr("no token")));
  config_["add_bos_token"] = "yes";
  EXPECT_THAT(Error(), HasSubstr("add_bos_token is \"yes\", want true or false"));
}

TEST_F(TokenizerConfig, OtherClassesMayNotContradictTheTokenizer) {
  config_["tokenizer_class"] = "PreTrainedTokenizerFast";
  config_["add_bos_token"] = false;
  EXPECT_THAT(Encode("ab"), ElementsAre(2));
  AddBos();
  EXPECT_THAT(Error(), AllOf(HasSubstr("add_bos_token is false"), HasSubstr("adds tokens before a text")));
  config_["add_bos_token"] = true;
  EXPECT_THAT(Encode("ab"), ElementsAre(3, 2));
  config_["add_eos_token"] = true;
  EXPECT_THAT(Error(), AllOf(HasSubstr("add_eos_token is true"), HasSubstr("adds nothing after a text")));
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
