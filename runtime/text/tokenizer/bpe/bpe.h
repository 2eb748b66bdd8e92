#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/bpe/bpe_merges.h"
#include "runtime/text/tokenizer/bpe/bpe_vocabulary.h"

namespace aludel {

// Byte-pair encoding as `model` of a tokenizer.json describes it: a piece starts as characters (or bytes,
// spelled as byte_level.h says), and the adjacent pair of the lowest merge rank, leftmost first, becomes one
// token until no pair merges. Immutable and thread-safe; it caches nothing.
class Bpe {
 public:
  // `byte_level`: pieces are bytes, vocabulary and merges spell them as characters.
  static absl::StatusOr<std::unique_ptr<Bpe>> FromJson(const nlohmann::json& model, bool byte_level,
                                                       const std::string& origin);

  // Appends the ids of `piece`, which is well-formed UTF-8. InvalidArgument names a character that the
  // vocabulary can spell in no way.
  absl::Status Encode(absl::string_view piece, std::vector<int32_t>* ids) const;

  // -1 where the vocabulary does not hold `spelling`.
  int32_t Find(absl::string_view spelling) const { return vocabulary_.Find(spelling); }
  // Spelling by id; empty for ids that the vocabulary leaves out.
  const std::vector<std::string>& spellings() const { return vocabulary_.spellings(); }
  // Left and right id of every merge, lowest rank first.
  const std::vector<std::pair<int32_t, int32_t>>& merge_list() const { return merges_.list(); }

 private:
  Bpe() = default;
  absl::Status PrepareBytes(const std::string& origin);
  void PrepareCharacters();

  absl::Status EncodeWhole(absl::string_view piece, std::vector<int32_t>* ids) const;
  absl::Status StartSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const;

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  // No merge reaches from another character into U+2581, so that a text may be cut before one: the result is
  // the same, and a long text without pre-tokenizer costs no long queue.
  bool cuts_at_metaspace_ = false;
  int32_t unk_id_ = -1;
  BpeVocabulary vocabulary_;
  BpeMerges merges_;
  absl::flat_hash_map<std::string, int32_t> whole_pieces_;  // with ignore_merges: bytes -> id
  std::vector<int32_t> start_ids_;  // by byte, or by code point below start_ids_.size(); -1: none
  std::vector<int32_t> byte_ids_;   // with byte_fallback: id of <0xNN>; -1: none
};

}  // namespace aludel
