#include "runtime/text/tokenizer/post_processor.h"

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/nesting.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxTemplateId = (1u << 24) - 1;

// Appends the ids that `special_tokens` gives for the token `name` of a template.
absl::Status AppendIds(const json& config, const std::string& name, const std::string& where,
                       std::vector<int32_t>* ids) {
  const json* tokens = FindMember(config, "special_tokens");
  const json* token = tokens == nullptr ? nullptr : FindMember(*tokens, name.c_str());
  const json* list = token == nullptr ? nullptr : FindMember(*token, "ids");
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": special_tokens has no ids for \"", name, "\""));
  }
  for (const json& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTemplateId) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": special_tokens: id of \"", name, "\" is ", DescribeJson(id)));
    }
    ids->push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const json& config, const std::string& where, PostProcessor* result) {
  ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "single", "pair", "special_tokens"}, where));
  const json* single = FindMember(config, "single");
  if (single == nullptr || !single->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": single is no array"));
  }
  std::vector<int32_t> before, after;
  bool seen_text = false;
  for (const json& item : *single) {
    const json* special = FindMember(item, "SpecialToken");
    if (special != nullptr) {
      ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(*special, "id", "", where));
      ALUDEL_RETURN_IF_ERROR(AppendIds(config, name, where, seen_text ? &after : &before));
      continue;
    }
    if (seen_text || FindMember(item, "Sequence") == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": single holds ", item.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 100),
          ", want SpecialToken items around one Sequence"));
    }
    seen_text = true;
  }
  if (!seen_text) return absl::InvalidArgumentError(absl::StrCat(where, ": single has no Sequence"));
  // A later processor of a sequence wraps what the earlier ones made.
  result->before.insert(result->before.begin(), before.begin(), before.end());
  result->after.insert(result->after.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status AddProcessor(const json& config, const std::string& origin, int depth, PostProcessor* result) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string type, StringMember(config, "type", "", origin));
  const std::string where = absl::StrCat(origin, ": ", type);
  if (type == "TemplateProcessing") return ReadTemplate(config, where, result);
  if (type == "ByteLevel") return absl::OkStatus();  // it trims offsets, which are not used here
  if (type != "Sequence" || depth >= kMaxSequenceNesting) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": type is \"", type, "\", want TemplateProcessing, ByteLevel or Sequence"));
  }
  ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "processors"}, where));
  const json* list = FindMember(config, "processors");
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": processors is no array"));
  }
  for (const json& step : *list) ALUDEL_RETURN_IF_ERROR(AddProcessor(step, origin, depth + 1, result));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::FromJson(const json* config, const std::string& origin) {
  PostProcessor result;
  if (config == nullptr || config->is_null()) return result;
  ALUDEL_RETURN_IF_ERROR(AddProcessor(*config, origin, 0, &result));
  return result;
}

}  // namespace aludel
