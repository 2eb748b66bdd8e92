#include "runtime/model/model_identity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aludel {

ModelIdentity IdentityOf(const ModelConfig& config, const std::string& weights_hash,
                         const TokenizerIdentity& tokenizer, int64_t rope_length) {
  return {.architecture = config.architecture,
          .weights_hash = weights_hash,
          .tokenizer_fingerprint = tokenizer.fingerprint,
          .vocabulary_fingerprint = tokenizer.vocabulary_fingerprint,
          .rope = DescribeRope(config, rope_length),
          .layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .vocab = config.vocab,
          .max_positions = config.max_positions};
}

std::string DescribeRope(const ModelConfig& config, int64_t rope_length) {
  const RopeConfig& rope = config.rope;
  std::string text = absl::StrFormat("theta %.10g", rope.theta);
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      if (rope.factor != 1.0) absl::StrAppendFormat(&text, ", linear factor %.10g", rope.factor);
      break;
    case RopeScaling::kDynamic:
      absl::StrAppendFormat(&text, ", dynamic factor %.10g from %d, fixed for length %d", rope.factor,
                            rope.original_max_positions, std::max(config.max_positions, rope_length));
      break;
    case RopeScaling::kLlama3:
      absl::StrAppendFormat(&text, ", llama3 factor %.10g, low %.10g, high %.10g, from %d", rope.factor,
                            rope.low_freq_factor, rope.high_freq_factor, rope.original_max_positions);
      break;
    case RopeScaling::kYarn:
      // The attention factor in effect: a config may state the one that its other numbers imply.
      absl::StrAppendFormat(&text, ", yarn factor %.10g, beta %.10g to %.10g, attention %.7g, from %d",
                            rope.factor, rope.beta_fast, rope.beta_slow,
                            MakeRopeFrequencies(config, rope_length).attention_factor,
                            rope.original_max_positions);
      if (!rope.truncate) absl::StrAppend(&text, ", not truncated");
      break;
  }
  return text;
}

std::vector<std::string> WhyNoPair(const ModelIdentity& producer, const ModelIdentity& consumer) {
  std::vector<std::string> reasons;
  const auto compare = [&](const char* name, const auto& found, const auto& want) {
    if (found != want) reasons.push_back(absl::StrCat(name, " is ", found, ", want ", want));
  };
  // Of one tokenizer every id is known to both, however far embeddings are padded. Of two, only what both
  // vocabularies and both embeddings hold for sure is.
  if (producer.tokenizer_fingerprint != consumer.tokenizer_fingerprint) {
    compare("vocabulary fingerprint", producer.vocabulary_fingerprint, consumer.vocabulary_fingerprint);
    compare("vocab_size", producer.vocab, consumer.vocab);
  }
  compare("layers", producer.layers, consumer.layers);
  compare("kv_heads", producer.kv_heads, consumer.kv_heads);
  compare("head_dim", producer.head_dim, consumer.head_dim);
  return reasons;
}

std::string CompareRopes(const ModelIdentity& producer, const ModelIdentity& consumer) {
  if (producer.rope == consumer.rope) return "";
  return absl::StrCat("the rope is ", producer.rope, " in the producer and ", consumer.rope,
                      " in the consumer");
}

}  // namespace aludel
