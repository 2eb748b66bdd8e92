#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

// Which tokens a sequence holds and how often it generated each: what the penalties need. Room for everything
// is made at construction, so that Add allocates nothing. Not thread-safe.
class TokenCounts {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t generated = 0;  // 0: in the prompt only
  };

  TokenCounts(absl::Span<const int32_t> prompt, int64_t max_completion);
  // One more generated token. Logarithmic search, linear insertion of a few bytes per distinct token.
  void Add(int32_t id);
  absl::Span<const Entry> entries() const { return entries_; }  // by id

 private:
  std::vector<Entry> entries_;
};

}  // namespace aludel
