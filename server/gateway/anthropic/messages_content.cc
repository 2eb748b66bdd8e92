#include "server/gateway/anthropic/messages_content.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/content/call_entry.h"
#include "server/gateway/openai/content/text_parts.h"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr TextParts::Kind kKinds[] = {{"text", "text"}};
constexpr TextParts kBlocks = {.kinds = kKinds, .noun = "blocks", .separator = "\n"};

void AppendText(absl::string_view more, ordered_json* text) {
  auto& string = text->get_ref<std::string&>();
  absl::StrAppend(&string, string.empty() ? "" : "\n", more);
}

// The last message where it is of that role, else a new one.
ordered_json& MessageOf(absl::string_view role, ordered_json* parsed) {
  if (parsed->empty() || parsed->back()["role"] != std::string(role)) {
    parsed->push_back({{"role", std::string(role)}, {"content", ""}});
  }
  return parsed->back();
}

// What stands in a list of blocks, one at a time.
class Block {
 public:
  Block(const ordered_json& json, std::string where)
      : where_(std::move(where)), json_(json), fields_(Safe(), where_ + ".") {
    const auto type = json.is_object() ? json.find("type") : json.end();
    if (type == json.end() || !type->is_string()) {
      fields_.Fail(InvalidParameter(where_, absl::StrCat("'", where_, "' must be an object with a 'type'")));
    } else {
      type_ = *type;
    }
  }

  const std::string& type() const { return type_; }
  JsonFields& fields() { return fields_; }

  // A field that must be there.
  std::string Needs(absl::string_view name) {
    const auto value = fields_.String(name);
    if (!value && !fields_.error()) fields_.Fail(name, "is required");
    return value.value_or("");
  }

  std::optional<ApiError> Unsupported(absl::string_view served) const {
    return UnsupportedParameter(where_ + ".type",
                                absl::StrCat("'", where_, "': blocks of type '", type_,
                                             "' are not supported here; expected ", served));
  }

 private:
  // Reading fields of what is no object finds none.
  const ordered_json& Safe() const {
    static const ordered_json empty = ordered_json::object();
    return json_.is_object() ? json_ : empty;
  }

  const std::string where_;
  const ordered_json& json_;
  JsonFields fields_;
  std::string type_;
};

std::optional<ApiError> ParseToolUse(Block* block, ordered_json* parsed) {
  const std::string id = block->Needs("id");
  const std::string name = block->Needs("name");
  const ordered_json* input = block->fields().Object("input");
  if (input == nullptr) block->fields().Fail("input", "is required, as an object");
  if (block->fields().error()) return block->fields().error();
  MessageOf("assistant", parsed)["tool_calls"].push_back(CallEntry(id, name, *input));
  return std::nullopt;
}

std::optional<ApiError> ParseToolResult(Block* block, const std::string& where, ordered_json* parsed) {
  const std::string id = block->Needs("tool_use_id");
  block->fields().Bool("is_error");
  std::string text;
  if (const ordered_json* content = block->fields().Find("content")) {
    if (auto error = ReadText(*content, where + ".content", kBlocks, &text)) return error;
  }
  if (block->fields().error()) return block->fields().error();
  parsed->push_back({{"role", "tool"}, {"content", std::move(text)}, {"tool_call_id", id}});
  return std::nullopt;
}

std::optional<ApiError> ParseBlock(const ordered_json& json, const std::string& where, bool assistant,
                                   ordered_json* parsed) {
  Block block(json, where);
  if (block.fields().error()) return block.fields().error();
  const std::string& type = block.type();
  if (type == "text") {
    AppendText(block.Needs("text"), &MessageOf(assistant ? "assistant" : "user", parsed)["content"]);
    return block.fields().error();
  }
  if (assistant && type == "tool_use") return ParseToolUse(&block, parsed);
  if (assistant && type == "thinking") {
    ordered_json& message = MessageOf("assistant", parsed);
    if (!message.contains("reasoning_content")) message["reasoning_content"] = "";
    AppendText(block.Needs("thinking"), &message["reasoning_content"]);
    return block.fields().error();
  }
  if (assistant && type == "redacted_thinking") return std::nullopt;
  if (!assistant && type == "tool_result") return ParseToolResult(&block, where, parsed);
  return block.Unsupported(assistant ? "'text', 'tool_use' or 'thinking'" : "'text' or 'tool_result'");
}

std::optional<ApiError> ParseTurn(const ordered_json& message, const std::string& where,
                                  ordered_json* parsed) {
  if (!message.is_object()) return InvalidParameter(where, absl::StrCat("'", where, "' must be an object"));
  JsonFields fields(message, where + ".");
  const std::string role = fields.String("role").value_or("");
  if (role != "user" && role != "assistant") {
    fields.Fail("role", absl::StrCat("must be 'user' or 'assistant', found '", role,
                                     "'; what the system says is in 'system'"));
  }
  const ordered_json* content = fields.Find("content");
  if (content == nullptr) fields.Fail("content", "is required");
  if (fields.error()) return fields.error();
  const std::string content_at = where + ".content";
  if (content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) {
      if (auto error = ParseBlock((*content)[i], At(content_at, i), role == "assistant", parsed))
        return error;
    }
    return std::nullopt;
  }
  std::string text;
  if (auto error = ReadText(*content, content_at, kBlocks, &text)) return error;
  AppendText(text, &MessageOf(role, parsed)["content"]);
  return std::nullopt;
}

// A string, or blocks of these kinds.
ordered_json ContentSchema(ordered_json blocks) {
  const ordered_json list = {{"type", "array"}, {"items", {{"anyOf", std::move(blocks)}}}};
  return {{"anyOf", ordered_json::array({ordered_json{{"type", "string"}}, list})}};
}

ordered_json TextBlockSchema() {
  return ordered_json::parse(R"({"type": "object", "required": ["type", "text"], "properties": {
      "type": {"const": "text"}, "text": {"type": "string"}}})");
}

ordered_json TurnSchema(const char* role, ordered_json blocks) {
  return {{"type", "object"},
          {"required", ordered_json::array({"role", "content"})},
          {"properties", {{"role", {{"const", role}}}, {"content", ContentSchema(std::move(blocks))}}}};
}

}  // namespace

ordered_json SystemSchema() { return ContentSchema(ordered_json::array({TextBlockSchema()})); }

ordered_json ConversationSchema() {
  ordered_json result =
      ordered_json::parse(R"({"type": "object", "required": ["type", "tool_use_id"], "properties": {
      "type": {"const": "tool_result"}, "tool_use_id": {"type": "string"}, "is_error": {"type": "boolean"}}})");
  result["properties"]["content"] = SystemSchema();
  const ordered_json use =
      ordered_json::parse(R"({"type": "object", "required": ["type", "id", "name", "input"],
      "properties": {"type": {"const": "tool_use"}, "id": {"type": "string"}, "name": {"type": "string"},
      "input": {"type": "object"}}})");
  const ordered_json thought =
      ordered_json::parse(R"({"type": "object", "required": ["type", "thinking"], "properties": {
      "type": {"const": "thinking"}, "thinking": {"type": "string"}}})");
  const ordered_json redacted =
      ordered_json::parse(R"({"type": "object", "required": ["type"], "properties": {
      "type": {"const": "redacted_thinking"}}})");
  const ordered_json turns = ordered_json::array(
      {TurnSchema("user", ordered_json::array({TextBlockSchema(), std::move(result)})),
       TurnSchema("assistant", ordered_json::array({TextBlockSchema(), use, thought, redacted}))});
  return {{"type", "array"}, {"items", {{"anyOf", turns}}}, {"minItems", 1}};
}

std::optional<ApiError> ParseSystem(const ordered_json& system, ordered_json* parsed) {
  std::string text;
  if (auto error = ReadText(system, "system", kBlocks, &text)) return error;
  if (!text.empty()) parsed->push_back({{"role", "system"}, {"content", std::move(text)}});
  return std::nullopt;
}

std::optional<ApiError> ParseConversation(const ordered_json& messages, ordered_json* parsed) {
  if (!messages.is_array() || messages.empty()) {
    return InvalidParameter("messages", "'messages' must be a list of at least one message");
  }
  const size_t before = parsed->size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (auto error = ParseTurn(messages[i], At("messages", i), parsed)) return error;
  }
  if (parsed->size() == before) return InvalidParameter("messages", "'messages' say nothing");
  return std::nullopt;
}

}  // namespace aludel
