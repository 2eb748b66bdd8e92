#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// How a model's publisher wants it sampled where a request does not say: generation_config.json, with the
// names and the meaning that transformers gives them. (Its eos ids are ModelConfig's, and its max_length is
// the context, which bounds every answer anyway.)
struct GenerationConfig {
  std::optional<double> temperature;  // 0 where do_sample is false: greedy
  std::optional<double> top_p;
  std::optional<uint32_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<uint32_t> max_new_tokens;
  // Fields of the file that ask for something that this runtime does not do, "num_beams 4": for a warning.
  std::vector<std::string> not_served;

  // InvalidArgument names the field, what was found and what was expected.
  static absl::StatusOr<GenerationConfig> FromJson(absl::string_view json, absl::string_view origin);
  // Reads DIR/generation_config.json; without the file nothing is set.
  static absl::StatusOr<GenerationConfig> Load(const std::string& directory);

  // "temperature 0.6, top_p 0.9", for logs; "" if nothing is set.
  std::string Describe() const;
};

}  // namespace aludel
