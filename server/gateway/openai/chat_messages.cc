#include "server/gateway/openai/chat_messages.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/openai/content/call_entry.h"
#include "server/gateway/openai/content/text_parts.h"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr TextParts::Kind kKinds[] = {{"text", "text"}, {"refusal", "refusal"}};
constexpr TextParts kParts = {.kinds = kKinds, .noun = "content parts", .separator = ""};

// [{"id", "type": "function", "function": {"name", "arguments": "{...}"}}, ...]
std::optional<ApiError> ParseCalls(const ordered_json& calls, const std::string& where,
                                   ordered_json* parsed) {
  if (!calls.is_array())
    return InvalidParameter(where, absl::StrCat("'", where, "' must be a list of tool calls"));
  *parsed = ordered_json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = At(where, i);
    const ordered_json& call = calls[i];
    const ordered_json function = call.is_object() ? call.value("function", ordered_json()) : ordered_json();
    const ordered_json id = call.is_object() ? call.value("id", ordered_json()) : ordered_json();
    if (!function.is_object() || !function.value("name", ordered_json()).is_string() || !id.is_string()) {
      return InvalidParameter(
          at, absl::StrCat("'", at, "' must be an object with an 'id' and a 'function' with a 'name'"));
    }
    JsonFields fields(function, absl::StrCat(at, ".function."));
    // A string, as the API has it: an object would have lost the order of its members by now.
    const std::string text = fields.String("arguments").value_or("");
    if (fields.error()) return fields.error();
    parsed->push_back(CallEntry(id, function["name"], CallArguments(text)));
  }
  return std::nullopt;
}

constexpr std::array<absl::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};

std::optional<ApiError> ParseMessage(const ordered_json& message, size_t index, ordered_json* parsed) {
  const std::string where = At("messages", index);
  if (!message.is_object()) return InvalidParameter(where, absl::StrCat("'", where, "' must be an object"));
  JsonFields fields(message, absl::StrCat(where, "."));
  const std::string role = fields.String("role").value_or("");
  if (!absl::c_linear_search(kRoles, role)) {
    fields.Fail("role", absl::StrCat("must be 'system', 'developer', 'user', 'assistant' or 'tool', found '",
                                     role, "'"));
  }
  fields.Refuse("function_call", nullptr, ": use 'tool_calls'");
  if (role != "assistant") fields.Refuse("tool_calls", nullptr, ": only assistants call tools");
  if (fields.error()) return fields.error();
  // Templates know the older name of the same role.
  *parsed = {{"role", role == "developer" ? "system" : role}, {"content", ""}};
  const ordered_json* calls = fields.Find("tool_calls");
  if (calls != nullptr && !(calls->is_array() && calls->empty())) {
    if (auto error = ParseCalls(*calls, where + ".tool_calls", &(*parsed)["tool_calls"])) return error;
  }
  // What was thought before an answer: templates keep it while tools are called.
  if (role == "assistant") {
    const auto reasoning = fields.String("reasoning_content");
    if (reasoning && !reasoning->empty()) (*parsed)["reasoning_content"] = *reasoning;
  }
  const ordered_json* content = fields.Find("content");
  if (content == nullptr && role == "assistant") content = fields.Find("refusal");
  if (content != nullptr) {
    std::string text;
    if (auto error = ReadText(*content, where + ".content", kParts, &text)) return error;
    (*parsed)["content"] = std::move(text);
  } else if (!parsed->contains("tool_calls")) {
    fields.Fail("content", "is required");
  }
  if (role == "tool") {
    const auto id = fields.String("tool_call_id");
    if (!id && !fields.error()) fields.Fail("tool_call_id", "is required");
    if (id) (*parsed)["tool_call_id"] = *id;
    if (const auto name = fields.String("name")) (*parsed)["name"] = *name;
  }
  return fields.error();
}

}  // namespace

ordered_json MessagesSchema() {
  const auto object = [](const ordered_json& properties, const std::vector<std::string>& required) {
    return ordered_json{{"type", "object"}, {"properties", properties}, {"required", required}};
  };
  const auto or_null = [](ordered_json schema) {
    return ordered_json{{"anyOf", ordered_json::array({std::move(schema), {{"type", "null"}}})}};
  };
  const ordered_json text = {{"type", "string"}};
  const auto part = [&](const char* type) {
    return object({{"type", {{"const", type}}}, {type, text}}, {"type", type});
  };
  const ordered_json parts = {{"type", "array"},
                              {"items", {{"anyOf", ordered_json::array({part("text"), part("refusal")})}}}};
  const ordered_json content = {{"anyOf", ordered_json::array({text, parts})}};
  const ordered_json function = object({{"name", text}, {"arguments", or_null(text)}}, {"name"});
  const ordered_json call =
      object({{"id", text}, {"type", {{"const", "function"}}}, {"function", function}}, {"id", "function"});
  const ordered_json calls = {{"type", "array"}, {"items", call}};
  ordered_json some_calls = calls;
  some_calls["minItems"] = 1;
  const ordered_json assistant = {{"const", "assistant"}};
  const ordered_json refusal = or_null(text), thoughts = or_null(text);
  // By role, and of an assistant's by what they must have.
  const ordered_json kinds = ordered_json::array(
      {object({{"role", {{"enum", {"system", "developer", "user"}}}}, {"content", content}},
              {"role", "content"}),
       object({{"role", assistant},
               {"content", content},
               {"refusal", refusal},
               {"reasoning_content", thoughts},
               {"tool_calls", or_null(calls)}},
              {"role", "content"}),
       object({{"role", assistant},
               {"content", or_null(content)},
               {"refusal", refusal},
               {"reasoning_content", thoughts},
               {"tool_calls", some_calls}},
              {"role", "tool_calls"}),
       object({{"role", assistant},
               {"content", {{"type", "null"}}},
               {"refusal", text},
               {"reasoning_content", thoughts},
               {"tool_calls", or_null(calls)}},
              {"role", "refusal"}),
       object({{"role", {{"const", "tool"}}},
               {"content", content},
               {"tool_call_id", text},
               {"name", or_null(text)}},
              {"role", "content", "tool_call_id"})});
  return {{"type", "array"}, {"items", {{"anyOf", kinds}}}, {"minItems", 1}};
}

std::optional<ApiError> ParseMessages(const ordered_json& messages, ordered_json* parsed) {
  if (!messages.is_array() || messages.empty()) {
    return InvalidParameter("messages", "'messages' must be a list of at least one message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    ordered_json message;
    if (auto error = ParseMessage(messages[i], i, &message)) return error;
    parsed->push_back(std::move(message));
  }
  return std::nullopt;
}

}  // namespace aludel
