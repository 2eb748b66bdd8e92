#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace aludel {

// `decoder` of a tokenizer.json: ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence of
// them; another type is an error that names it. Immutable and thread-safe.
class Decoder {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    virtual void Apply(std::vector<std::string>* tokens) const = 0;
  };

  // `config` may be null or JSON null: tokens are joined by spaces.
  static absl::StatusOr<Decoder> FromJson(const nlohmann::json* config, const std::string& origin);

  std::string Decode(std::vector<std::string> tokens) const;
  // What `token` adds in the middle of a text, broken characters as they are.
  std::string TokenBytes(const std::string& token) const;

 private:
  absl::Status Add(const nlohmann::json& config, const std::string& origin, int depth);

  bool joins_with_space_ = true;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace aludel
