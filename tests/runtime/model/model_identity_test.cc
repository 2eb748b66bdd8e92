#include "runtime/model/model_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kShape[] =
    R"("architectures": ["MistralForCausalLM"], "hidden_size": 64, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80)";

ModelIdentity Identity(const std::string& more) {
  const auto config = ModelConfig::FromJson(std::string("{") + kShape + more + "}", "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return IdentityOf(*config, "weights", {"tokenizer", "bytes"}, 0);
}

std::string Yarn(const std::string& more) {
  return R"(, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64)" +
         more + "}, \"max_position_embeddings\": 256";
}

TEST(ModelIdentity, AModelFitsItself) {
  EXPECT_THAT(WhyNoPair(Identity(""), Identity("")), IsEmpty());
  EXPECT_EQ(CompareRopes(Identity(""), Identity("")), "");
}

TEST(ModelIdentity, EqualRopesMayBeSpelledDifferently) {
  const ModelIdentity derived = Identity(Yarn(""));
  // 0.1 ln 4 + 1, the paper's.
  EXPECT_EQ(CompareRopes(derived, Identity(Yarn(R"(, "attention_factor": 1.1386294361119891)"))), "");
  EXPECT_EQ(CompareRopes(derived, Identity(Yarn(R"(, "beta_fast": 32, "beta_slow": 1.0)"))), "");
  EXPECT_THAT(derived.rope, HasSubstr("attention 1.138629"));
  EXPECT_EQ(CompareRopes(Identity(R"(, "rope_scaling": {"type": "linear", "factor": 1.0})"), Identity("")),
            "");
}

// K travels before RoPE: see model_identity.h.
TEST(ModelIdentity, RopesMayDiffer) {
  const ModelIdentity yarn = Identity(Yarn("")), other = Identity(Yarn(R"(, "attention_factor": 1.0)"));
  for (const ModelIdentity& consumer : {Identity(""), Identity(R"(, "rope_theta": 500000.0)"), other}) {
    EXPECT_THAT(WhyNoPair(yarn, consumer), IsEmpty());
    EXPECT_EQ(CompareRopes(yarn, consumer),
              "the rope is " + yarn.rope + " in the producer and " + consumer.rope + " in the consumer");
  }
}

TEST(ModelIdentity, TokenizersMayDifferInAddedTokensOnly) {
  const ModelIdentity consumer = Identity("");
  ModelIdentity producer = consumer;
  producer.tokenizer_fingerprint = "renamed";
  EXPECT_THAT(WhyNoPair(producer, consumer), IsEmpty());
  producer.vocab = 96;
  EXPECT_THAT(WhyNoPair(producer, consumer), ElementsAre("vocab_size is 96, want 80"));
  producer.vocabulary_fingerprint = "other";
  EXPECT_THAT(WhyNoPair(producer, consumer),
              ElementsAre("vocabulary fingerprint is other, want bytes", "vocab_size is 96, want 80"));
}

TEST(ModelIdentity, OneTokenizersEmbeddingMayBePadded) {
  ModelIdentity padded = Identity("");
  padded.vocab = 96;
  EXPECT_THAT(WhyNoPair(padded, Identity("")), IsEmpty());
}

// K and V of every position are in a cache whoever looks at them: see model_identity.h.
TEST(ModelIdentity, WindowsMayDiffer) {
  EXPECT_THAT(WhyNoPair(Identity(R"(, "sliding_window": 8)"), Identity(R"(, "sliding_window": null)")),
              IsEmpty());
}

}  // namespace
}  // namespace aludel
