#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/normalizer.h"
#include "runtime/text/tokenizer/regex.h"

namespace aludel {

// One of `added_tokens`: text that is one token wherever it stands.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalized text, else in the text as given
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const nlohmann::json* list,
                                                        const std::string& origin);

// A stretch of text: an added token (id >= 0), or text that is none (id < 0).
struct TokenSection {
  TextRange range;
  int32_t id = -1;
};

// Finds added tokens in a text: leftmost first, of those that start together the longest. Immutable
// and thread-safe.
class AddedTokenMatcher {
 public:
  // `spelling` is how the token appears in the text that Split will see (normalized or not).
  void Add(const AddedToken& token, absl::string_view spelling);

  bool empty() const { return tokens_.empty(); }
  // The bytes of the longest token that `text` has at `at`; 0 where none begins there. `cut_off`: the text
  // ends within the spelling of one.
  size_t LengthAt(absl::string_view text, size_t at, bool* cut_off) const;
  // All of `text` as sections in order.
  void Split(absl::string_view text, std::vector<TokenSection>* sections) const;

 private:
  // Index into tokens_ of the longest token that `text` has at `at`, and its length; -1: none.
  int LongestAt(absl::string_view text, size_t at, size_t* length, bool* cut_off = nullptr) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};  // first bytes of tokens
  // A trie: node << 8 | byte -> node; the root is 0. token_at_[node] indexes tokens_, -1 where none ends.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<int> token_at_ = {-1};
  std::vector<bool> has_children_ = {false};
};

}  // namespace aludel
