#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace aludel {

// `post_processor` of a tokenizer.json, reduced to what it adds around one text: ids before and after it.
// TemplateProcessing, ByteLevel (which adds nothing) and Sequence of them; another type is an error that
// names it.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;

  static absl::StatusOr<PostProcessor> FromJson(const nlohmann::json* config, const std::string& origin);
};

}  // namespace aludel
