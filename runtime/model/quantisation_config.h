#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace aludel {

enum class QuantisationMethod : uint8_t { kNone, kFp8, kAwq, kGptq };

// The `quantization_config` of a HuggingFace config: how a checkpoint stores the matrices that it does not
// store plainly. Which matrices those are, the tensors say. Weights are dequantised when they are loaded;
// activations stay what the server computes in, whatever `activation_scheme` says.
struct QuantisationConfig {
  QuantisationMethod method = QuantisationMethod::kNone;
  int64_t block_rows = 0;  // fp8: `weight_block_size`; 0: one scale per tensor or per row
  int64_t block_cols = 0;
  int64_t group_size = 0;  // awq, gptq: inputs that share a scale; 0: all of them (-1 in the file)
  int zero_offset = 0;     // gptq: what is added to a stored zero point

  // InvalidArgument names the field, what was found and what is supported.
  static absl::StatusOr<QuantisationConfig> FromJson(const nlohmann::json& object, absl::string_view origin);
};

// "none", "fp8", "awq" or "gptq".
const char* Name(QuantisationMethod method);

}  // namespace aludel
