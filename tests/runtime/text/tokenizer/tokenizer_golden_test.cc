// Encodes and decodes what HuggingFace's own libraries encoded and decoded (reference/README.md).
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {
namespace {

using ::nlohmann::json;

constexpr char kReference[] = "tests/runtime/text/reference/";

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

// A family, a variant of one (reference/variants.mjs), or the demo pair's.
class TokenizerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string& name = GetParam();
    const json variants = ReadJson(absl::StrCat(kReference, "variants.json"));
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer;
    if (variants.contains(name)) {
      const std::string base = variants[name]["base"];
      json file = ReadJson(absl::StrCat(kReference, base, "/tokenizer.json"));
      file.update(variants[name]["members"]);
      tokenizer = Tokenizer::FromJson(file.dump(), name);
      golden_ = ReadJson(absl::StrCat(kReference, "variants_golden.json"))[name];
    } else if (name == "demo") {
      tokenizer = Tokenizer::Load("deploy/demo/chat");
      golden_ = ReadJson(absl::StrCat(kReference, "demo_golden.json"));
    } else {
      tokenizer = Tokenizer::Load(kReference + name);
      golden_ = ReadJson(absl::StrCat(kReference, name, "/golden.json"));
    }
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    ASSERT_GT(golden_["cases"].size(), 50);
  }
  std::vector<int32_t> Encode(const std::string& text, bool add_special_tokens) const {
    auto ids = tokenizer_->Encode(text, add_special_tokens);
    EXPECT_TRUE(ids.ok()) << ids.status() << " for " << json(text);
    return ids.ok() ? *ids : std::vector<int32_t>();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  json golden_;
};

TEST_P(TokenizerGolden, EncodesAsTheReference) {
  for (const json& item : golden_["cases"]) {
    EXPECT_EQ(Encode(item["text"], false), item["ids"].get<std::vector<int32_t>>()) << item["text"];
  }
  EXPECT_EQ(Encode("x", true), golden_["with_special_tokens"].get<std::vector<int32_t>>());
  EXPECT_EQ(Encode("x", false), golden_["without"].get<std::vector<int32_t>>());
}

TEST_P(TokenizerGolden, DecodesAsTheReference) {
  for (const json& item : golden_["cases"]) {
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    const std::string text = item.value("decoded", item["text"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(ids, false), text);
    EXPECT_EQ(tokenizer_->Decode(ids, true), item.value("without_special", text));
  }
}

TEST_P(TokenizerGolden, StreamsTheSameTextInWholeCharacters) {
  for (const json& item : golden_["cases"]) {
    StreamDecoder stream(tokenizer_.get());
    std::string text;
    for (const int32_t id : item["ids"].get<std::vector<int32_t>>()) {
      const std::string piece = stream.Push(id);
      // dump() throws on a string that is not UTF-8.
      EXPECT_NO_THROW(json(piece).dump()) << item["text"];
      text += piece;
    }
    text += stream.Flush();
    EXPECT_EQ(text, tokenizer_->Decode(item["ids"].get<std::vector<int32_t>>(), true));
  }
}

TEST_P(TokenizerGolden, SpellsEveryTokenInBytes) {
  for (const json& item : golden_["cases"]) {
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    const std::string text = tokenizer_->Decode(ids, true);
    if (text.find("\xef\xbf\xbd") != std::string::npos) continue;
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer_->TokenBytes(id);
    // Some decoders drop spaces in front of a text, which is no property of the token.
    ASSERT_GE(bytes.size(), text.size()) << item["text"];
    EXPECT_EQ(bytes, std::string(bytes.size() - text.size(), ' ') + text) << item["text"];
  }
  EXPECT_EQ(tokenizer_->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer_->TokenBytes(tokenizer_->vocab_size()), "");
}

std::vector<std::string> NamesOfVariants() {
  const json variants = ReadJson(absl::StrCat(kReference, "variants.json"));
  std::vector<std::string> names;
  for (const auto& [name, variant] : variants.items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden,
                         ::testing::Values("gpt2", "llama3", "qwen2", "llama2", "mistral", "demo"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Variants, TokenizerGolden, ::testing::ValuesIn(NamesOfVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace aludel
