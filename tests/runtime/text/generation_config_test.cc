#include "runtime/text/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GenerationConfig Read(absl::string_view json) {
  const absl::StatusOr<GenerationConfig> config = GenerationConfig::FromJson(json, "file");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(GenerationConfig());
}

TEST(GenerationConfig, ReadsWhatLlama31Publishes) {
  const GenerationConfig config = Read(R"({"bos_token_id": 128000, "do_sample": true,
      "eos_token_id": [128001, 128008, 128009], "temperature": 0.6, "top_p": 0.9,
      "transformers_version": "4.42.3"})");
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_p, 0.9);
  EXPECT_FALSE(config.top_k.has_value());
  EXPECT_THAT(config.not_served, IsEmpty());
  EXPECT_EQ(config.Describe(), "temperature 0.6, top_p 0.9");
}

TEST(GenerationConfig, ReadsWhatQwen25Publishes) {
  const GenerationConfig config = Read(R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
      "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
      "max_new_tokens": 2048, "min_p": 0.01})");
  EXPECT_EQ(config.Describe(),
            "temperature 0.7, top_p 0.8, top_k 20, min_p 0.01, repetition_penalty 1.05, max_new_tokens 2048");
}

TEST(GenerationConfig, IsGreedyWhereThePublisherDoesNotSample) {
  EXPECT_EQ(Read(R"({"do_sample": false, "temperature": 0.9})").temperature, 0.0);
  EXPECT_FALSE(Read(R"({"temperature": null})").temperature.has_value());
}

TEST(GenerationConfig, TakesBothWaysToSwitchTopKOff) {
  EXPECT_EQ(Read(R"({"top_k": 0})").top_k, 0);
  EXPECT_EQ(Read(R"({"top_k": -1})").top_k, 0);
}

TEST(GenerationConfig, NamesWhatItDoesNotServe) {
  EXPECT_THAT(
      Read(
          R"({"suppress_tokens": [7], "bad_words_ids": [], "stop_strings": "###", "forced_eos_token_id": null,
                       "sequence_bias": {}, "guidance_scale": false, "min_length": 5})")
          .not_served,
      ElementsAre("min_length 5", "suppress_tokens an array of 1 members", "stop_strings \"###\""));
  const GenerationConfig config =
      Read(R"({"num_beams": 4, "typical_p": 1.0, "no_repeat_ngram_size": 3, "penalty_alpha": "much"})");
  EXPECT_THAT(config.not_served,
              ElementsAre("num_beams 4", "penalty_alpha \"much\"", "no_repeat_ngram_size 3"));
}

TEST(GenerationConfig, NamesTheFieldThatIsWrong) {
  for (const auto& [text, field] : {std::pair{R"({"temperature": "hot"})", "temperature"},
                                    {R"({"temperature": -1})", "temperature"},
                                    {R"({"top_p": 1.5})", "top_p"},
                                    {R"({"top_k": -2})", "top_k"},
                                    {R"({"top_k": 1.5})", "top_k"},
                                    {R"({"min_p": 2})", "min_p"},
                                    {R"({"repetition_penalty": 0})", "repetition_penalty"},
                                    {R"({"max_new_tokens": 1e12})", "max_new_tokens"},
                                    {R"({"do_sample": 1})", "do_sample"},
                                    {"[]", "want an object"},
                                    {"{", "file"}}) {
    const absl::Status status = GenerationConfig::FromJson(text, "file").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field)) << text;
  }
}

TEST(GenerationConfig, IsEmptyWithoutItsFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(GenerationConfig::Load(directory.path()).ok());
  EXPECT_EQ(GenerationConfig::Load(directory.path())->Describe(), "");
  directory.Write("generation_config.json", R"({"temperature": 0.5})");
  EXPECT_EQ(GenerationConfig::Load(directory.path())->Describe(), "temperature 0.5");
}

}  // namespace
}  // namespace aludel
