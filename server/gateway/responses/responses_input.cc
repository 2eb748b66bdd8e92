#include "server/gateway/responses/responses_input.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/openai/content/call_entry.h"
#include "server/gateway/openai/content/text_parts.h"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr TextParts::Kind kKinds[] = {
    {"input_text", "text"}, {"output_text", "text"}, {"reasoning_text", "text"}, {"refusal", "refusal"}};
constexpr TextParts kParts = {.kinds = kKinds, .noun = "content parts", .separator = ""};

// One item of the input.
class Item {
 public:
  Item(const ordered_json& json, std::string where, ordered_json* parsed)
      : where_(std::move(where)), fields_(json, where_ + "."), parsed_(parsed) {}

  std::optional<ApiError> Message() {
    static constexpr std::array<absl::string_view, 4> kRoles = {"system", "developer", "user", "assistant"};
    const std::string role = fields_.String("role").value_or("");
    if (!absl::c_linear_search(kRoles, role)) {
      fields_.Fail("role",
                   absl::StrCat("must be 'system', 'developer', 'user' or 'assistant', found '", role, "'"));
    }
    const ordered_json* content = fields_.Find("content");
    if (content == nullptr) fields_.Fail("content", "is required");
    if (fields_.error()) return fields_.error();
    std::string text;
    if (auto error = ReadText(*content, where_ + ".content", kParts, &text)) return error;
    // What an assistant says beside its calls is one message with them.
    if (role == "assistant" && LastIsAssistant()) {
      auto& said = parsed_->back()["content"].get_ref<std::string&>();
      absl::StrAppend(&said, said.empty() ? "" : "\n", text);
    } else {
      // Templates know the older name of the same role.
      parsed_->push_back({{"role", role == "developer" ? "system" : role}, {"content", std::move(text)}});
    }
    return std::nullopt;
  }

  // What was thought, where the item says it: an encrypted one does not.
  std::optional<ApiError> Reasoning() {
    const ordered_json* content = fields_.Find("content");
    std::string text;
    if (content != nullptr) {
      if (auto error = ReadText(*content, where_ + ".content", kParts, &text)) return error;
    }
    if (text.empty()) return std::nullopt;
    if (!LastIsAssistant()) parsed_->push_back({{"role", "assistant"}, {"content", ""}});
    ordered_json& thoughts = parsed_->back()["reasoning_content"];
    if (thoughts.is_null()) thoughts = "";
    auto& said = thoughts.get_ref<std::string&>();
    absl::StrAppend(&said, said.empty() ? "" : "\n", text);
    return std::nullopt;
  }

  std::optional<ApiError> Call() {
    const std::string id = Needs("call_id");
    const std::string name = Needs("name");
    const std::string text = fields_.String("arguments").value_or("");
    if (fields_.error()) return fields_.error();
    if (!LastIsAssistant()) parsed_->push_back({{"role", "assistant"}, {"content", ""}});
    parsed_->back()["tool_calls"].push_back(CallEntry(id, name, CallArguments(text)));
    return std::nullopt;
  }

  std::optional<ApiError> CallOutput() {
    const std::string id = Needs("call_id");
    const ordered_json* output = fields_.Find("output");
    if (output == nullptr) fields_.Fail("output", "is required");
    if (fields_.error()) return fields_.error();
    std::string text;
    if (auto error = ReadText(*output, where_ + ".output", kParts, &text)) return error;
    parsed_->push_back({{"role", "tool"}, {"content", std::move(text)}, {"tool_call_id", id}});
    return std::nullopt;
  }

 private:
  bool LastIsAssistant() const { return !parsed_->empty() && parsed_->back()["role"] == "assistant"; }

  // A field that must be there.
  std::string Needs(absl::string_view name) {
    const auto value = fields_.String(name);
    if (!value && !fields_.error()) fields_.Fail(name, "is required");
    return value.value_or("");
  }

  const std::string where_;
  JsonFields fields_;
  ordered_json* const parsed_;
};

std::optional<ApiError> ParseItem(const ordered_json& json, const std::string& where, const FindItem* find,
                                  ordered_json* parsed) {
  if (!json.is_object()) return InvalidParameter(where, absl::StrCat("'", where, "' must be an object"));
  JsonFields fields(json, where + ".");
  const std::string type = fields.String("type").value_or("message");
  if (fields.error()) return fields.error();
  Item item(json, where, parsed);
  if (type == "message") return item.Message();
  if (type == "function_call") return item.Call();
  if (type == "function_call_output") return item.CallOutput();
  if (type == "reasoning") return item.Reasoning();
  if (type == "item_reference" && find != nullptr) {
    const std::string id = fields.String("id").value_or("");
    const std::shared_ptr<const std::string> found = (*find)(id);
    if (found == nullptr) {
      return InvalidParameter(where + ".id", absl::StrCat("'", where, ".id': no item '", id,
                                                          "' is kept here, or no "
                                                          "longer; send the item itself"));
    }
    const auto stored = ParseOrdered(*found);
    return stored.ok() ? ParseItem(*stored, where, nullptr, parsed) : FromStatus(where, stored.status());
  }
  return UnsupportedParameter(
      where + ".type",
      absl::StrCat("'", where,
                   "': only items of type 'message', 'function_call', 'function_call_output', 'reasoning' "
                   "and 'item_reference' are supported, found '",
                   type, "'"));
}

}  // namespace

ordered_json InputSchema() {
  const ordered_json text =
      ordered_json::parse(R"({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [
      {"type": "object", "required": ["type", "text"], "properties": {
        "type": {"enum": ["input_text", "output_text", "reasoning_text"]}, "text": {"type": "string"}}},
      {"type": "object", "required": ["type", "refusal"], "properties": {
        "type": {"const": "refusal"}, "refusal": {"type": "string"}}}]}}]})");
  ordered_json items = ordered_json::parse(R"([
      {"type": "object", "required": ["role", "content"], "properties": {
        "type": {"const": "message"}, "role": {"enum": ["system", "developer", "user", "assistant"]}}},
      {"type": "object", "required": ["type", "call_id", "output"], "properties": {
        "type": {"const": "function_call_output"}, "call_id": {"type": "string"}}},
      {"type": "object", "required": ["type", "call_id", "name"], "properties": {
        "type": {"const": "function_call"}, "call_id": {"type": "string"}, "name": {"type": "string"},
        "arguments": {"type": "string"}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"const": "reasoning"}}},
      {"type": "object", "required": ["type", "id"], "properties": {
        "type": {"const": "item_reference"}, "id": {"type": "string"}}}])");
  items[0]["properties"]["content"] = text;
  items[1]["properties"]["output"] = text;
  items[3]["properties"]["content"] = {
      {"anyOf", ordered_json::array({text, ordered_json{{"type", "null"}}})}};
  const ordered_json list = {{"type", "array"}, {"items", {{"anyOf", std::move(items)}}}, {"minItems", 1}};
  return {{"anyOf", ordered_json::array({ordered_json{{"type", "string"}}, list})}};
}

std::optional<ApiError> ParseInput(const ordered_json& input, const FindItem& find, ordered_json* parsed) {
  if (input.is_string()) {
    parsed->push_back({{"role", "user"}, {"content", input}});
    return std::nullopt;
  }
  if (!input.is_array() || input.empty()) {
    return InvalidParameter("input", "'input' must be a string or a list of at least one item");
  }
  for (size_t i = 0; i < input.size(); ++i) {
    if (auto error = ParseItem(input[i], At("input", i), &find, parsed)) return error;
  }
  return std::nullopt;
}

}  // namespace aludel
