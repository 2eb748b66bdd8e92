#include "runtime/model/quantisation_config.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/model/json_reader.h"
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

absl::Status ReadFp8(const json& object, absl::string_view origin, QuantisationConfig* config) {
  ALUDEL_RETURN_IF_ERROR(OneOf(object, origin, "fmt", "e4m3", {"e4m3", "float8_e4m3fn"}).status());
  const json* block = FindMember(object, "weight_block_size");
  if (block == nullptr) return absl::OkStatus();
  const auto good = [](const json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxGroup;
  };
  if (!block->is_array() || block->size() != 2 || !good((*block)[0]) || !good((*block)[1])) {
    return Unsupported(object, origin, "weight_block_size", "[rows, columns]");
  }
  config->block_rows = (*block)[0].get<int64_t>();
  config->block_cols = (*block)[1].get<int64_t>();
  return absl::OkStatus();
}

// `bits` and `group_size`, which AutoAWQ once called w_bit and q_group_size.
absl::Status ReadInt4(const json& object, absl::string_view origin, QuantisationConfig* config) {
  const char* bits = FindMember(object, "w_bit") != nullptr ? "w_bit" : "bits";
  ALUDEL_ASSIGN_OR_RETURN(const int64_t width, IntMember(object, bits, 0, 0, 64, origin));
  if (width != 4) return Unsupported(object, origin, bits, "4");
  const char* group = FindMember(object, "q_group_size") != nullptr ? "q_group_size" : "group_size";
  ALUDEL_ASSIGN_OR_RETURN(const int64_t size, IntMember(object, group, 128, -1, kMaxGroup, origin));
  if (size == 0) return Unsupported(object, origin, group, "-1 or a positive number");
  config->group_size = size == -1 ? 0 : size;
  return absl::OkStatus();
}

absl::Status ReadAwq(const json& object, absl::string_view origin, QuantisationConfig* config) {
  ALUDEL_RETURN_IF_ERROR(ReadInt4(object, origin, config));
  ALUDEL_RETURN_IF_ERROR(OneOf(object, origin, "version", "gemm", {"gemm", "GEMM"}).status());
  ALUDEL_ASSIGN_OR_RETURN(const bool zero_point, BoolMember(object, "zero_point", true, origin));
  if (!zero_point) return Unsupported(object, origin, "zero_point", "true");
  return absl::OkStatus();
}

absl::Status ReadGptq(const json& object, absl::string_view origin, QuantisationConfig* config) {
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

absl::StatusOr<QuantisationConfig> QuantisationConfig::FromJson(const json& object,
                                                                absl::string_view origin) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, " is ", DescribeJson(object), ", want an object"));
  }
  QuantisationConfig config;
  ALUDEL_ASSIGN_OR_RETURN(const int method,
                          OneOf(object, origin, "quant_method", "", {"fp8", "awq", "gptq"}));
  constexpr struct {
    QuantisationMethod method;
    absl::Status (*read)(const json&, absl::string_view, QuantisationConfig*);
  } kMethods[] = {{QuantisationMethod::kFp8, ReadFp8},
                  {QuantisationMethod::kAwq, ReadAwq},
                  {QuantisationMethod::kGptq, ReadGptq}};
  config.method = kMethods[method].method;
  ALUDEL_RETURN_IF_ERROR(kMethods[method].read(object, origin, &config));
  return config;
}

const char* Name(QuantisationMethod method) {
  switch (method) {
    case QuantisationMethod::kNone:
      return "none";
    case QuantisationMethod::kFp8:
      return "fp8";
    case QuantisationMethod::kAwq:
      return "awq";
    case QuantisationMethod::kGptq:
      return "gptq";
  }
  return "?";
}

}  // namespace aludel
