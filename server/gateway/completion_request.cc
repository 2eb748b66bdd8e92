#include "server/gateway/completion_request.h"

#include <array>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/json_fields.h"
#include "server/gateway/sampling_fields.h"

namespace aludel {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
// OpenAI's default for the older endpoint.
constexpr int64_t kDefaultPlainMaxTokens = 16;

// Where in the body a value stands, e.g. "messages[3].content".
std::string At(absl::string_view list, size_t index, absl::string_view field = "") {
  return absl::StrCat(list, "[", index, "]", field.empty() ? "" : ".", field);
}

// A message's content: a string, null, or a list of text parts.
std::optional<ApiError> ParseContent(const json& content, const std::string& where, std::string* text) {
  if (content.is_string()) {
    *text = content.get<std::string>();
    return std::nullopt;
  }
  if (!content.is_array()) {
    return InvalidParameter(where, absl::StrCat("'", where, "' must be a string or a list of content parts, ",
                                                "found ", content.type_name()));
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string part_at = At(where, i);
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (type == part.end() || !type->is_string()) {
      return InvalidParameter(part_at, absl::StrCat("'", part_at, "' must be an object with a 'type'"));
    }
    if (*type != "text") {
      return UnsupportedParameter(
          At(where, i, "type"),
          absl::StrCat("'", part_at, "': only parts of type 'text' are supported, found '",
                       type->get<std::string>(), "'"));
    }
    const auto part_text = part.find("text");
    if (part_text == part.end() || !part_text->is_string()) {
      return InvalidParameter(At(where, i, "text"), absl::StrCat("'", part_at, "' needs a string 'text'"));
    }
    *text += part_text->get_ref<const std::string&>();
  }
  return std::nullopt;
}

void ParseExtensions(JsonFields& fields, CompletionRequest* request) {
  const json* object = fields.Object("aludel");
  if (object == nullptr) return;
  JsonFields extension(*object, "aludel.");
  for (const auto& item : object->items()) {
    if (item.key() != "fidelity" && item.key() != "format") {
      extension.Fail(item.key(), "is not known; expected 'fidelity' or 'format'");
    }
  }
  if (const auto fidelity = extension.String("fidelity")) {
    if (*fidelity == "exact") {
      request->fidelity = v1::FIDELITY_EXACT;
    } else if (*fidelity == "coded") {
      request->fidelity = v1::FIDELITY_CODED;
    } else {
      extension.Fail("fidelity", absl::StrCat("must be 'exact' or 'coded', found '", *fidelity, "'"));
    }
  }
  request->format = extension.String("format").value_or("");
  if (extension.error()) fields.Fail(*extension.error());
}

// What both endpoints share.
void ParseShared(JsonFields& fields, CompletionRequest* request) {
  request->model = fields.String("model").value_or("");
  if (!fields.error() && request->model.empty()) fields.Fail("model", "is required");
  ParseSampling(fields, &request->sampling);
  request->stream = fields.Bool("stream").value_or(false);
  if (const json* options = fields.Object("stream_options")) {
    if (!request->stream) fields.Fail("stream_options", "is only allowed when 'stream' is true");
    JsonFields stream_options(*options, "stream_options.");
    request->include_usage = stream_options.Bool("include_usage").value_or(false);
    if (stream_options.error()) fields.Fail(*stream_options.error());
  }
  ParseExtensions(fields, request);
}

void RefuseChatOnly(JsonFields& fields) {
  fields.Refuse("tools", nullptr, "");
  fields.Refuse("functions", nullptr, "");
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr && *choice != "auto") {
    fields.Refuse("tool_choice", "none", "");
  }
  if (const json* call = fields.Find("function_call"); call != nullptr && *call != "auto") {
    fields.Refuse("function_call", "none", "");
  }
  fields.Refuse("modalities", json::array({"text"}), ": only text is served");
  fields.Refuse("audio", nullptr, "");
  fields.Refuse("prediction", nullptr, "");
  fields.Refuse("web_search_options", nullptr, "");
  if (const json* format = fields.Object("response_format"); format != nullptr) {
    JsonFields inner(*format, "response_format.");
    inner.Refuse("type", "text", ": only 'text' is served");
    if (inner.error()) fields.Fail(*inner.error());
  }
}

void ParsePrompt(JsonFields& fields, CompletionRequest* request) {
  const json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail("prompt", "is required");
  // A list of one prompt is that prompt; a list of numbers is a prompt of token ids.
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) prompt = &prompt->front();
  if (prompt->is_string()) {
    request->prompt = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    fields.Fail(UnsupportedParameter(
        "prompt", absl::StrCat("'prompt' holds ", prompt->size(), " prompts; one per request is served")));
  } else if (auto error = ParseTokenIds(*prompt, "prompt", &request->prompt_ids)) {
    fields.Fail(*std::move(error));
  }
}

}  // namespace

std::optional<ApiError> ParseObject(absl::string_view body, json* object) {
  ApiError error;
  error.message = "We could not parse the JSON body of your request: expected one JSON object";
  try {
    *object = json::parse(body.begin(), body.end());
    if (object->is_object()) return std::nullopt;
    absl::StrAppend(&error.message, ", found ", object->type_name());
  } catch (const json::parse_error& fault) {
    absl::StrAppend(&error.message, "; the fault is at byte ", fault.byte);
  }
  return error;
}

std::optional<ApiError> ParseTokenIds(const json& value, absl::string_view param, std::vector<int32_t>* ids) {
  const std::string expected = absl::StrCat("'", param, "' must be a string or a list of token ids");
  if (!value.is_array() || value.empty()) return InvalidParameter(param, expected);
  ids->reserve(value.size());
  for (const json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxTokens)) {
      return InvalidParameter(param, absl::StrCat(expected, "; element ", ids->size(), " is none"));
    }
    ids->push_back(id.get<int32_t>());
  }
  return std::nullopt;
}

std::optional<ApiError> ParseMessages(const json& messages, ordered_json* parsed) {
  static constexpr std::array<absl::string_view, 4> kRoles = {"system", "developer", "user", "assistant"};
  if (!messages.is_array() || messages.empty()) {
    return InvalidParameter("messages", "'messages' must be a list of at least one message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const json& message = messages[i];
    const std::string where = At("messages", i);
    if (!message.is_object()) return InvalidParameter(where, absl::StrCat("'", where, "' must be an object"));
    JsonFields fields(message, absl::StrCat(where, "."));
    const std::string role = fields.String("role").value_or("");
    if (!absl::c_linear_search(kRoles, role)) {
      fields.Fail("role",
                  absl::StrCat("must be 'system', 'developer', 'user' or 'assistant', found '", role, "'"));
    }
    fields.Refuse("tool_calls", nullptr, "");
    fields.Refuse("function_call", nullptr, "");
    const json* content = fields.Find("content");
    if (content == nullptr) fields.Fail("content", "is required");
    if (fields.error()) return fields.error();
    std::string text;
    if (auto error = ParseContent(*content, At("messages", i, "content"), &text)) return error;
    // Templates know the older name of the same role.
    parsed->push_back({{"role", role == "developer" ? "system" : role}, {"content", std::move(text)}});
  }
  return std::nullopt;
}

std::optional<ApiError> ParseChatRequest(absl::string_view body, CompletionRequest* request) {
  json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  request->chat = true;
  ParseShared(fields, request);
  ParseChatLogprobs(fields, &request->sampling);
  RefuseChatOnly(fields);
  // The newer name wins; both count the same tokens here, as nothing is generated that is not shown.
  auto max_tokens = fields.Integer("max_completion_tokens", 1, kMaxTokens);
  const auto old_max_tokens = fields.Integer("max_tokens", 1, kMaxTokens);
  if (!max_tokens) max_tokens = old_max_tokens;
  request->sampling.set_max_tokens(static_cast<uint32_t>(max_tokens.value_or(0)));
  if (fields.error()) return fields.error();
  const json* messages = fields.Find("messages");
  if (messages == nullptr) return InvalidParameter("messages", "'messages' is required");
  return ParseMessages(*messages, &request->messages);
}

std::optional<ApiError> ParseCompletionRequest(absl::string_view body, CompletionRequest* request) {
  json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  request->chat = false;
  ParseShared(fields, request);
  ParsePlainLogprobs(fields, &request->sampling);
  fields.Refuse("echo", false, "");
  fields.Refuse("best_of", request->sampling.choices(), ": every choice is returned, so it can only be 'n'");
  fields.Refuse("suffix", "", "");
  request->sampling.set_max_tokens(
      static_cast<uint32_t>(fields.Integer("max_tokens", 1, kMaxTokens).value_or(kDefaultPlainMaxTokens)));
  ParsePrompt(fields, request);
  return fields.error();
}

}  // namespace aludel
