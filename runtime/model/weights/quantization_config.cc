#include "runtime/model/weights/quantization_config.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr int64_t kMaxGroup = 1 << 20;

absl::Status Unsupported(const json& object, absl::string_view origin, const char* name,
                         absl::string_view supported) {
  const json* found = FindMember(object, name);
  return absl::InvalidArgumentError(absl::StrCat(
      origin, ".", name, " is ", found == nullptr ? "missing" : DescribeJson(*found), ", want ", supported));
}

// Which of `known` the string member is; `fallback` is one of them or stands for "must be given".
absl::StatusOr<int> OneOf(const json& object, absl::string_view origin, const char* name,
                          const char* fallback, std::initializer_list<absl::string_view> known) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string value, StringMember(object, name, fallback, origin));
  const auto* found = std::find(known.begin(), known.end(), absl::string_view(value));
  if (found != known.end()) return static_cast<int>(found - known.begin());
  return Unsupported(object, origin, name, absl::StrCat("\"", absl::StrJoin(known, "\" or \""), "\""));
}

// [rows, columns] that share a scale.
absl::Status ReadBlock(const json& object, absl::string_view origin, const char* name,
                       QuantizationConfig* config) {
  const json* block = FindMember(object, name);
  const auto good = [](const json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxGroup;
  };
  if (block == nullptr || !block->is_array() || block->size() != 2 || !good((*block)[0]) ||
      !good((*block)[1])) {
    return Unsupported(object, origin, name, "[rows, columns]");
  }
  config->block_rows = (*block)[0].get<int64_t>();
  config->block_cols = (*block)[1].get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadFp8(const json& object, absl::string_view origin, QuantizationConfig* config) {
  ALUDEL_RETURN_IF_ERROR(OneOf(object, origin, "fmt", "e4m3", {"e4m3", "float8_e4m3fn"}).status());
  config->fp8_inputs = FindMember(object, "activation_scheme") != nullptr;
  if (FindMember(object, "weight_block_size") == nullptr) return absl::OkStatus();
  return ReadBlock(object, origin, "weight_block_size", config);
}

// `weights` of one of config_groups.
absl::Status ReadFloatScheme(const json& weights, absl::string_view origin, QuantizationConfig* config) {
  ALUDEL_ASSIGN_OR_RETURN(const int64_t bits, IntMember(weights, "num_bits", 0, 0, 64, origin));
  if (bits != 8) return Unsupported(weights, origin, "num_bits", "8");
  ALUDEL_RETURN_IF_ERROR(OneOf(weights, origin, "type", "", {"float"}).status());
  ALUDEL_ASSIGN_OR_RETURN(const bool symmetric, BoolMember(weights, "symmetric", true, origin));
  if (!symmetric) return Unsupported(weights, origin, "symmetric", "true");
  ALUDEL_ASSIGN_OR_RETURN(const int strategy,
                          OneOf(weights, origin, "strategy", "", {"tensor", "channel", "block"}));
  constexpr int kBlock = 2;
  if (strategy != kBlock) return absl::OkStatus();
  return ReadBlock(weights, origin, "block_structure", config);
}

// Whether a group says of inputs what ReadFloatScheme wants of weights.
bool HasFloatInputs(const json& group) {
  const json* inputs = FindMember(group, "input_activations");
  if (inputs == nullptr || !inputs->is_object()) return false;
  const json* bits = FindMember(*inputs, "num_bits");
  const json* type = FindMember(*inputs, "type");
  return bits != nullptr && *bits == 8 && type != nullptr && *type == "float";
}

// What llm-compressor writes. `ignore` needs no reading: the tensors say what is quantized.
absl::Status ReadCompressedTensors(const json& object, absl::string_view origin, QuantizationConfig* config) {
  // The second is an older name of the same bytes.
  constexpr absl::string_view kFormat = "float-quantized", kAlias = "naive-quantized";
  ALUDEL_RETURN_IF_ERROR(OneOf(object, origin, "format", "", {kFormat, kAlias}).status());
  const json* sparsity = FindMember(object, "sparsity_config");
  if (sparsity != nullptr && sparsity->is_object()) {
    const std::string where = absl::StrCat(origin, ".sparsity_config");
    ALUDEL_RETURN_IF_ERROR(OneOf(*sparsity, where, "format", "dense", {"dense"}).status());
  }
  const json* transforms = FindMember(object, "transform_config");  // rotations of weights and activations
  if (transforms != nullptr && !transforms->empty()) {
    return Unsupported(object, origin, "transform_config", "nothing");
  }
  const json* groups = FindMember(object, "config_groups");
  if (groups == nullptr || !groups->is_object()) {
    return Unsupported(object, origin, "config_groups", "an object of schemes");
  }
  bool any = false;
  for (const auto& [name, group] : groups->items()) {
    const std::string where = absl::StrCat(origin, ".config_groups.", name);
    const json* weights = FindMember(group, "weights");
    if (weights == nullptr) continue;
    ALUDEL_RETURN_IF_ERROR(OneOf(group, where, "format", kFormat.data(), {kFormat, kAlias}).status());
    QuantizationConfig scheme;
    ALUDEL_RETURN_IF_ERROR(ReadFloatScheme(*weights, where + ".weights", &scheme));
    if (any && (scheme.block_rows != config->block_rows || scheme.block_cols != config->block_cols)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".weights has blocks other than the groups before it, want one kind of block"));
    }
    config->block_rows = scheme.block_rows;
    config->block_cols = scheme.block_cols;
    config->fp8_inputs = HasFloatInputs(group) && (!any || config->fp8_inputs);
    any = true;
  }
  return any ? absl::OkStatus() : Unsupported(object, origin, "config_groups", "a group with weights");
}

// Older versions nest the algorithm as their own file does. It is one of weights and inputs.
absl::Status ReadModelOpt(const json& object, absl::string_view origin, QuantizationConfig* config) {
  config->fp8_inputs = true;
  const json* nested = FindMember(object, "quantization");
  if (nested == nullptr) return OneOf(object, origin, "quant_algo", "", {"FP8"}).status();
  return OneOf(*nested, absl::StrCat(origin, ".quantization"), "quant_algo", "", {"FP8"}).status();
}

// `bits` and `group_size`, which AutoAWQ once called w_bit and q_group_size.
absl::Status ReadInt4(const json& object, absl::string_view origin, QuantizationConfig* config) {
  const char* bits = FindMember(object, "w_bit") != nullptr ? "w_bit" : "bits";
  ALUDEL_ASSIGN_OR_RETURN(const int64_t width, IntMember(object, bits, 0, 0, 64, origin));
  if (width != 4) return Unsupported(object, origin, bits, "4");
  const char* group = FindMember(object, "q_group_size") != nullptr ? "q_group_size" : "group_size";
  ALUDEL_ASSIGN_OR_RETURN(const int64_t size, IntMember(object, group, 128, -1, kMaxGroup, origin));
  if (size == 0) return Unsupported(object, origin, group, "-1 or a positive number");
  config->group_size = size == -1 ? 0 : size;
  return absl::OkStatus();
}

absl::Status ReadAwq(const json& object, absl::string_view origin, QuantizationConfig* config) {
  ALUDEL_RETURN_IF_ERROR(ReadInt4(object, origin, config));
  ALUDEL_RETURN_IF_ERROR(OneOf(object, origin, "version", "gemm", {"gemm", "GEMM"}).status());
  ALUDEL_ASSIGN_OR_RETURN(const bool zero_point, BoolMember(object, "zero_point", true, origin));
  if (!zero_point) return Unsupported(object, origin, "zero_point", "true");
  return absl::OkStatus();
}

absl::Status ReadGptq(const json& object, absl::string_view origin, QuantizationConfig* config) {
  ALUDEL_RETURN_IF_ERROR(ReadInt4(object, origin, config));
  // The first version of the format stores every zero point less one.
  ALUDEL_ASSIGN_OR_RETURN(config->zero_offset,
                          OneOf(object, origin, "checkpoint_format", "gptq", {"gptq_v2", "gptq"}));
  ALUDEL_ASSIGN_OR_RETURN(const bool marlin, BoolMember(object, "is_marlin_format", false, origin));
  if (marlin) return Unsupported(object, origin, "is_marlin_format", "false");
  const json* dynamic = FindMember(object, "dynamic");  // other widths for some modules
  if (dynamic != nullptr && !dynamic->empty()) return Unsupported(object, origin, "dynamic", "nothing");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizationConfig> QuantizationConfig::FromJson(const json& object,
                                                                absl::string_view origin) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, " is ", DescribeJson(object), ", want an object"));
  }
  QuantizationConfig config;
  ALUDEL_ASSIGN_OR_RETURN(const int method, OneOf(object, origin, "quant_method", "",
                                                  {"fp8", "awq", "gptq", "compressed-tensors", "modelopt"}));
  constexpr struct {
    QuantizationMethod method;
    absl::Status (*read)(const json&, absl::string_view, QuantizationConfig*);
  } kMethods[] = {{QuantizationMethod::kFp8, ReadFp8},
                  {QuantizationMethod::kAwq, ReadAwq},
                  {QuantizationMethod::kGptq, ReadGptq},
                  {QuantizationMethod::kFp8, ReadCompressedTensors},
                  {QuantizationMethod::kFp8, ReadModelOpt}};
  config.method = kMethods[method].method;
  ALUDEL_RETURN_IF_ERROR(kMethods[method].read(object, origin, &config));
  return config;
}

absl::StatusOr<QuantizationConfig> QuantizationConfig::FromModelOpt(const json& object,
                                                                    absl::string_view origin) {
  const json* quantization = FindMember(object, "quantization");
  if (quantization == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": quantization is missing"));
  }
  QuantizationConfig config;
  config.method = QuantizationMethod::kFp8;
  ALUDEL_RETURN_IF_ERROR(ReadModelOpt(*quantization, absl::StrCat(origin, ": quantization"), &config));
  return config;
}

const char* Name(QuantizationMethod method) {
  switch (method) {
    case QuantizationMethod::kNone:
      return "none";
    case QuantizationMethod::kFp8:
      return "fp8";
    case QuantizationMethod::kAwq:
      return "awq";
    case QuantizationMethod::kGptq:
      return "gptq";
  }
  return "?";
}

}  // namespace aludel
