#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

// Tokens at both ends of a prompt that the consumer computes itself (AludelShape), beside its last token.
struct RecomputedTokens {
  int64_t head = 0;
  int64_t tail = 0;
};

// Prompts that begin alike, such as several questions about one text: models compute what they share once.
struct Passage {
  // The common trunk, then of each prompt what follows it, one behind the other: a branch of at least one token.
  std::vector<int32_t> ids;
  std::vector<int64_t> branches;  // where each begins in `ids`

  int64_t trunk() const { return branches.front(); }
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  // Where branch `b` ends in `ids`.
  int64_t end(size_t b) const { return b + 1 < branches.size() ? branches[b + 1] : tokens(); }
};

// One behind the other, prompts that share at least half of each other become a passage, of at most
// `most_branches`. Every prompt has a token. Its last one and the `tail_tokens` before that, as far as it is that long, are
// its branch's own.
std::vector<Passage> GroupPassages(absl::Span<const std::vector<int32_t>> prompts, size_t most_branches,
                                   int64_t tail_tokens);

}  // namespace aludel
