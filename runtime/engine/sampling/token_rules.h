#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

// How long an answer may think: from `begin` (kNoBegin: the prompt has begun it) to `end`, at most `tokens` in between.
struct ThinkingLimit {
  static constexpr int32_t kNoBegin = -1;
  int64_t tokens = 0;
  int32_t begin = kNoBegin;  // where the answer's first token is another one, it does not think
  int32_t end = 0;
};

// Tokens that a request rules out, beside penalties and a grammar. Ids are in the vocabulary.
struct TokenRuleSet {
  std::vector<uint64_t> allowed;            // a bit per token; empty: all
  std::vector<std::vector<int32_t>> never;  // runs of tokens, none of them empty, that never appear whole
  std::vector<int32_t> late;                // not among the first `late_from` tokens of the answer
  int64_t late_from = 0;
  std::optional<ThinkingLimit> thinking;
};

// Which of them the next token of one choice may not be. Choices share the set. Not thread-safe.
class TokenRules {
 public:
  // Null: none.
  explicit TokenRules(std::shared_ptr<const TokenRuleSet> rules);

  // Whether the next token is restricted at all.
  bool restrict_next() const;
  // Sets the logits of what the next token may not be to minus infinity; NaN stays. row [vocab]
  void Apply(absl::Span<float> row) const;
  // `token` is the next one.
  void Accept(int32_t token);

 private:
  bool must_end_thinking() const;

  std::shared_ptr<const TokenRuleSet> rules_;
  size_t longest_ = 0;           // of rules_->never
  std::vector<int32_t> recent_;  // the answer's last longest_ - 1 tokens
  int64_t accepted_ = 0;
  bool thinking_ = false;
  int64_t thought_ = 0;  // tokens of it
};

// Sets the logits of tokens whose bit is off to minus infinity; NaN stays. row [vocab], a bit per token
void ApplyTokenMask(absl::Span<const uint64_t> allowed, absl::Span<float> row);

}  // namespace aludel
