#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace aludel {

enum class QuantizationMethod : uint8_t { kNone, kFp8, kAwq, kGptq };

// The `quantization_config` of a HuggingFace config: how a checkpoint stores the matrices that it does not
// store plainly. Which matrices those are, the tensors say: what a quantizer was told to ignore lies there
// plainly. Weights are dequantized when they are loaded, but for FP8 of `fp8_inputs` where the device keeps it
// (Weights::Load). The cache stays what the server computes in, whatever the config says of it, and scales of
// activations are not read. FP8 is the `quant_method` fp8, compressed-tensors (`format`
// float-quantized) or modelopt (`quant_algo` FP8).
struct QuantizationConfig {
  QuantizationMethod method = QuantizationMethod::kNone;
  int64_t block_rows = 0;  // fp8: rows and columns that share a scale; 0: one scale per tensor or per row
  int64_t block_cols = 0;
  // fp8: made for products whose inputs are rounded to FP8 as well (W8A8), and not for weights alone.
  bool fp8_inputs = false;
  int64_t group_size = 0;  // awq, gptq: inputs that share a scale; 0: all of them (-1 in the file)
  int zero_offset = 0;     // gptq: what is added to a stored zero point

  // InvalidArgument names the field, what was found and what is supported.
  static absl::StatusOr<QuantizationConfig> FromJson(const nlohmann::json& object, absl::string_view origin);
  // The content of a hf_quant_config.json, which TensorRT Model Optimizer writes beside config.json.
  static absl::StatusOr<QuantizationConfig> FromModelOpt(const nlohmann::json& object,
                                                         absl::string_view origin);
};

// "none", "fp8", "awq" or "gptq".
const char* Name(QuantizationMethod method);

}  // namespace aludel
