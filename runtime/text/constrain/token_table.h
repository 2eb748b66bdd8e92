#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// The bytes of a vocabulary's tokens in lexical order, with the length that each shares with the one before:
// a trie laid flat, so that a walk over the vocabulary follows each common prefix once. Tokens without bytes
// (special ones) are left out. Immutable and thread-safe.
class TokenTable {
 public:
  struct Entry {
    int32_t id = 0;
    uint32_t offset = 0;  // of its bytes
    uint16_t size = 0;
    uint16_t shared = 0;  // with the entry before
  };

  // Reads the whole vocabulary: a tenth of a second for 100,000 tokens. `eos_ids` end a text. `vocab` is the
  // model's, which may be larger than the tokenizer's.
  TokenTable(const Tokenizer& tokenizer, absl::Span<const int> eos_ids, int vocab);

  absl::Span<const Entry> entries() const { return entries_; }
  absl::string_view bytes(const Entry& entry) const {
    return absl::string_view(bytes_).substr(entry.offset, entry.size);
  }
  // Of one token by id; nothing for one without.
  absl::string_view bytes(int32_t id) const;
  const std::vector<int>& eos_ids() const { return eos_ids_; }
  size_t mask_words() const { return (vocab_ + 63) / 64; }
  size_t longest() const { return longest_; }

 private:
  std::vector<Entry> entries_;
  std::vector<int32_t> entry_of_;  // by id; -1 where there is none
  std::string bytes_;
  const std::vector<int> eos_ids_;
  const size_t vocab_;
  size_t longest_ = 0;
};

}  // namespace aludel
