#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/bpe/bpe_vocabulary.h"

namespace aludel {

// `merges` of a tokenizer.json's BPE model: which adjacent tokens become one, lowest rank first. Immutable and thread-safe.
class BpeMerges {
 public:
  // InvalidArgument says what of `model` is wrong, and begins with `origin`.
  static absl::StatusOr<BpeMerges> FromJson(const nlohmann::json& model, const BpeVocabulary& vocabulary,
                                            const std::string& origin);

  // Merges adjacent ids, the pair of the lowest rank and of these the leftmost first, until none merges.
  // Cancelled: see StopScope.
  absl::Status Apply(std::vector<int32_t>* symbols) const;
  // Left and right id of every merge, lowest rank first.
  const std::vector<std::pair<int32_t, int32_t>>& list() const { return list_; }

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t merged = 0;
  };

  const Merge* Find(int32_t left, int32_t right) const;
  void ApplyShort(std::vector<int32_t>* symbols) const;
  absl::Status ApplyLong(std::vector<int32_t>* symbols) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // left << 32 | right
  std::vector<std::pair<int32_t, int32_t>> list_;
};

}  // namespace aludel
