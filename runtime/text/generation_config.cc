#include "runtime/text/generation_config.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 16;

absl::Status Read(const json& root, const char* name, double min, double max, absl::string_view origin,
                  std::optional<double>* value) {
  if (FindMember(root, name) == nullptr) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(*value, NumberMember(root, name, 0, min, max, origin));
  return absl::OkStatus();
}

// `min` of -1: another way to write 0.
absl::Status Read(const json& root, const char* name, int64_t min, absl::string_view origin,
                  std::optional<uint32_t>* value) {
  if (FindMember(root, name) == nullptr) return absl::OkStatus();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  ALUDEL_ASSIGN_OR_RETURN(const int64_t read, IntMember(root, name, 0, min, kMax, origin));
  *value = static_cast<uint32_t>(std::max<int64_t>(read, 0));
  return absl::OkStatus();
}

// What would change answers and is not done here, with the value that asks for nothing.
struct NotServed {
  const char* name;
  double off;
};
constexpr NotServed kNotServed[] = {
    {"num_beams", 1},
    {"penalty_alpha", 0},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"no_repeat_ngram_size", 0},
    {"diversity_penalty", 0},
    {"encoder_repetition_penalty", 1},
    {"guidance_scale", 1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"exponential_decay_length_penalty", 0},
    {"bad_words_ids", 0},
    {"sequence_bias", 0},
    {"suppress_tokens", 0},
    {"begin_suppress_tokens", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"stop_strings", 0},
};

bool AsksForNothing(const json& value, double off) {
  if (value.is_number()) return value.get<double>() == off;
  return value == false || ((value.is_structured() || value.is_string()) && value.empty());
}

template <typename T>
void Append(const char* name, const std::optional<T>& value, std::string* text) {
  if (value.has_value()) absl::StrAppend(text, text->empty() ? "" : ", ", name, " ", *value);
}

}  // namespace

absl::StatusOr<GenerationConfig> GenerationConfig::FromJson(absl::string_view text,
                                                            absl::string_view origin) {
  ALUDEL_ASSIGN_OR_RETURN(const json root, ParseJson(text, origin, kMaxDepth));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": is ", DescribeJson(root), ", want an object"));
  }
  GenerationConfig config;
  ALUDEL_RETURN_IF_ERROR(Read(root, "temperature", 0, 100, origin, &config.temperature));
  ALUDEL_RETURN_IF_ERROR(Read(root, "top_p", 0, 1, origin, &config.top_p));
  ALUDEL_RETURN_IF_ERROR(Read(root, "top_k", -1, origin, &config.top_k));
  ALUDEL_RETURN_IF_ERROR(Read(root, "min_p", 0, 1, origin, &config.min_p));
  ALUDEL_RETURN_IF_ERROR(Read(root, "repetition_penalty", 0.01, 10, origin, &config.repetition_penalty));
  ALUDEL_RETURN_IF_ERROR(Read(root, "max_new_tokens", 0, origin, &config.max_new_tokens));
  ALUDEL_ASSIGN_OR_RETURN(const bool do_sample, BoolMember(root, "do_sample", true, origin));
  if (!do_sample) config.temperature = 0;
  for (const NotServed& field : kNotServed) {
    const json* found = FindMember(root, field.name);
    if (found == nullptr || AsksForNothing(*found, field.off)) continue;
    config.not_served.push_back(absl::StrCat(field.name, " ", DescribeJson(*found)));
  }
  return config;
}

absl::StatusOr<GenerationConfig> GenerationConfig::Load(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/generation_config.json");
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return GenerationConfig();
  if (!text.ok()) return text.status();
  return FromJson(*text, path);
}

std::string GenerationConfig::Describe() const {
  std::string text;
  Append("temperature", temperature, &text);
  Append("top_p", top_p, &text);
  Append("top_k", top_k, &text);
  Append("min_p", min_p, &text);
  Append("repetition_penalty", repetition_penalty, &text);
  Append("max_new_tokens", max_new_tokens, &text);
  return text;
}

}  // namespace aludel
