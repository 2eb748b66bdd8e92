#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace aludel {

// `normalizer` of a tokenizer.json: NFC, NFD, NFKC, NFKD (ICU), Lowercase, Prepend, Replace, Strip and
// Sequence of them; another type is an error that names it. Immutable and thread-safe.
class Normalizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    virtual absl::Status Apply(std::string* text) const = 0;
  };

  // `config` may be null or JSON null: nothing is changed.
  static absl::StatusOr<Normalizer> FromJson(const nlohmann::json* config, const std::string& origin);

  bool empty() const { return steps_.empty(); }
  // `text` is well-formed UTF-8 and stays so.
  absl::Status Apply(std::string* text) const;

 private:
  absl::Status Add(const nlohmann::json& config, const std::string& origin, int depth);

  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace aludel
