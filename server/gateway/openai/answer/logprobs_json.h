#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// Log-probabilities of one choice in the shape of its endpoint: chat has a list of tokens with their bytes,
// the older endpoint four lists side by side, whose offsets count characters of the text. Not thread-safe;
// the tokenizer must outlive it.
class LogprobsJson {
 public:
  LogprobsJson(bool chat, const Tokenizer* tokenizer) : chat_(chat), tokenizer_(tokenizer) {}

  // The "logprobs" of a chunk with this token; null where none were asked for.
  nlohmann::ordered_json Make(const v1::Token& token);
  // In the older endpoint's shape: one token whose entries are its own and its alternatives; null where there are none.
  nlohmann::ordered_json PlainEntry(int32_t token, absl::Span<const v1::TokenLogprob> entries,
                                    int64_t offset) const;
  // Tokens of the older endpoint go on behind so many characters.
  void StartAt(int64_t characters) { characters_ = characters; }

  // Special tokens by their name.
  std::string Bytes(int32_t token) const;
  // The same as JSON has it.
  std::string Spelling(int32_t token) const { return Spelling(Bytes(token)); }
  // JSON has no infinities; vLLM writes this for what a model rules out.
  static float Finite(float logprob) { return std::max(logprob, -9999.0f); }

 private:
  nlohmann::ordered_json MakeChat(const v1::Token& token) const;
  nlohmann::ordered_json MakePlain(const v1::Token& token);
  nlohmann::ordered_json ChatEntry(const v1::TokenLogprob& entry) const;
  // As OpenAI writes tokens that are part of a character, so that each has a name of its own: "\xe2\x82", and
  // "bytes:\xe2\x82" in the older lists.
  static std::string Spelling(const std::string& bytes);
  std::string PlainSpelling(int32_t token) const;

  const bool chat_;
  const Tokenizer* const tokenizer_;
  int64_t characters_ = 0;  // of the text so far, one that is not whole yet included
};

// The "logprobs" of a whole answer, as the text that it will be in the body: as a tree of values, an answer
// that a client waits for would take ten times its size.
class LogprobsText {
 public:
  // Adds what LogprobsJson makes of the next token.
  void Append(const nlohmann::ordered_json& one);
  // One JSON value, null where nothing was added.
  void AppendTo(std::string* body) const;
  size_t size() const;  // bytes that AppendTo adds, or a few more

 private:
  struct Member {
    std::string name;
    std::string text;  // a list lacks its closing bracket
    bool list = false;
  };
  std::vector<Member> members_;
};

}  // namespace aludel
