#pragma once

#include <cstdint>
#include <string>

#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "runtime/model/tokenizer.h"

namespace aludel {

// Log-probabilities of one choice in the shape of its endpoint: chat has a list of tokens with their bytes,
// the older endpoint four lists side by side. Not thread-safe; the tokenizer must outlive it.
class LogprobsJson {
 public:
  LogprobsJson(bool chat, const Tokenizer* tokenizer) : chat_(chat), tokenizer_(tokenizer) {}

  // The "logprobs" of a chunk with this token; null where none were asked for.
  nlohmann::ordered_json Make(const v1::Token& token);
  // Adds one such object to those before it; `all` begins as null.
  static void Append(const nlohmann::ordered_json& one, nlohmann::ordered_json* all);

 private:
  // As the client may show it: broken characters as U+FFFD, special tokens by their name.
  std::string Spelling(int32_t token) const;
  nlohmann::ordered_json ChatEntry(const v1::TokenLogprob& entry) const;

  const bool chat_;
  const Tokenizer* const tokenizer_;
  int64_t text_offset_ = 0;
};

}  // namespace aludel
