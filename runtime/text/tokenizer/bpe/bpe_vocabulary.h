#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// `vocab` of a tokenizer.json's BPE model: spellings and their ids, each once. Moves; immutable and thread-safe.
class BpeVocabulary {
 public:
  BpeVocabulary() = default;
  BpeVocabulary(BpeVocabulary&&) = default;
  BpeVocabulary& operator=(BpeVocabulary&&) = default;

  // InvalidArgument says what of `model` is wrong, and begins with `origin`.
  static absl::StatusOr<BpeVocabulary> FromJson(const nlohmann::json& model, const std::string& origin);

  // -1 where it does not hold `spelling`.
  int32_t Find(absl::string_view spelling) const;
  // By id; empty for ids that are left out.
  const std::vector<std::string>& spellings() const { return spellings_; }
  const absl::flat_hash_map<absl::string_view, int32_t>& ids() const { return ids_; }

 private:
  std::vector<std::string> spellings_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // into spellings_, whose strings stay where they are
};

}  // namespace aludel
