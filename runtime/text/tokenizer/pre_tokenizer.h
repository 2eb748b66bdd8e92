#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/regex.h"

namespace aludel {

// A text cut into pieces: no merge ever crosses from one to the next.
struct Pieces {
  std::string text;
  std::vector<TextRange> ranges;  // ascending, not overlapping, none empty
  // Whether text[0] is the first character of what the caller tokenizes.
  bool at_start = true;
};

// `pre_tokenizer` of a tokenizer.json: ByteLevel, Split, Digits, Metaspace and Sequence of them; another type
// is an error that names it. Immutable and thread-safe.
class PreTokenizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    virtual absl::Status Apply(Pieces* pieces) const = 0;
  };

  // `config` may be null or JSON null: the text stays one piece.
  static absl::StatusOr<PreTokenizer> FromJson(const nlohmann::json* config, const std::string& origin);

  // Whether pieces are to be read as bytes (a ByteLevel comes last).
  bool byte_level() const { return byte_level_; }
  absl::Status Apply(Pieces* pieces) const;

 private:
  absl::Status Add(const nlohmann::json& config, const std::string& origin, int depth);
  absl::Status AddSplit(const nlohmann::json& config, const std::string& where);
  absl::Status AddMetaspace(const nlohmann::json& config, const std::string& where);

  bool byte_level_ = false;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace aludel
