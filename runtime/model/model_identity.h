#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/model_config.h"

namespace aludel {

// Identifies a model to peers: what must agree for one model's cache to mean anything to another, and what
// tells two models apart.
struct ModelIdentity {
  std::string architecture;
  std::string weights_hash;            // XXH3-128, hex
  std::string tokenizer_fingerprint;   // Tokenizer::fingerprint()
  std::string vocabulary_fingerprint;  // Tokenizer::vocabulary_fingerprint()
  std::string rope;                    // DescribeRope()
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  int64_t max_positions = 0;
};

// What a tokenizer says of itself: Tokenizer::fingerprint() and Tokenizer::vocabulary_fingerprint().
struct TokenizerIdentity {
  std::string fingerprint;
  std::string vocabulary_fingerprint;
};

// `rope_length`: what TransformerOptions says, or 0.
ModelIdentity IdentityOf(const ModelConfig& config, const std::string& weights_hash,
                         const TokenizerIdentity& tokenizer, int64_t rope_length);

// Every number that positions depend on, in effect and not as a config spells it, as text: "theta 500000,
// llama3 factor 8, ...". Equal texts rotate equally.
std::string DescribeRope(const ModelConfig& config, int64_t rope_length);

// Why a cache of `producer` is of no use to `consumer`, a sentence each ("kv_heads is 8, want 4"); none where
// it is. Weights may differ: that is what consumers are for. So may names and flags of added tokens: prompts
// arrive as ids, which the consumer's tokenizer made. So may ropes: K travels before RoPE in every format
// (FORMAT.md), and the consumer rotates it by its own. So may sliding windows: caches hold K and V of every
// position, inside a window or not. Up to the smaller window, and under equal ropes, both models compute the
// same of the same weights; else the producer's states differ from the consumer's as they do for other
// weights, which is what a codec is fitted and measured for, and an artifact is bound to one config by its
// hash. InspectPair says so where ropes or windows differ.
std::vector<std::string> WhyNoPair(const ModelIdentity& producer, const ModelIdentity& consumer);

// How the ropes of a pair differ, for people: "the rope is ... in the producer and ... in the consumer"; ""
// where they do not.
std::string CompareRopes(const ModelIdentity& producer, const ModelIdentity& consumer);

}  // namespace aludel
