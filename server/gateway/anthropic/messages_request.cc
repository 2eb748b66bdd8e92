#include "server/gateway/anthropic/messages_request.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/anthropic/messages_content.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/fields/response_format.h"
#include "server/gateway/openai/fields/sampling_fields.h"
#include "server/gateway/openai/fields/structured_outputs.h"
#include "server/gateway/openai/fields/unserved_fields.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

ordered_json ToolsSchema() {
  ordered_json tool =
      ordered_json::parse(R"({"type": "object", "required": ["name", "input_schema"], "properties": {
      "type": {"const": "custom"}, "description": {"type": "string"}, "input_schema": {"type": "object"}}})");
  tool["properties"]["name"] = FunctionNameSchema();
  return {{"type", "array"}, {"items", std::move(tool)}, {"maxItems", kMaxTools}};
}

ordered_json ChoiceSchema() {
  return ordered_json::parse(R"({"type": "object", "required": ["type"], "properties": {
      "type": {"enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"},
      "disable_parallel_tool_use": {"type": "boolean"}}})");
}

// {"name", "description", "input_schema"} as chat templates know it: {"type": "function", "function": {...}}.
void ReadTool(JsonFields& fields, const ordered_json& tool, const std::string& where, ordered_json* list) {
  if (!tool.is_object()) return fields.Fail(where, "must be an object");
  const ordered_json type = tool.value("type", ordered_json());
  if (!type.is_null() && type != "custom") {
    return fields.Fail(UnsupportedParameter(
        where + ".type", absl::StrCat("'", where,
                                      ".type': the tools of Anthropic's own servers are not served, only "
                                      "'custom' ones with an 'input_schema', found ",
                                      Dump(type))));
  }
  JsonFields members(tool, where + ".");
  const std::string name = members.String("name").value_or("");
  if (!IsFunctionName(name)) members.Fail("name", kFunctionNameForm);
  const auto description = members.String("description");
  const ordered_json* schema = members.Object("input_schema");
  if (schema == nullptr) members.Fail("input_schema", "is required: a JSON schema, as an object");
  if (members.error()) return fields.Fail(*members.error());
  for (const ordered_json& other : *list) {
    if (other["function"]["name"] == name) {
      return fields.Fail(where + ".name", absl::StrCat("names '", name, "' for the second time"));
    }
  }
  ordered_json function = {{"name", name}};
  if (description) function["description"] = *description;
  function["parameters"] = *schema;
  list->push_back({{"type", "function"}, {"function", std::move(function)}});
}

// {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}
void ReadChoice(JsonFields& fields, const ordered_json& choice, ordered_json* converted) {
  JsonFields members(choice, "tool_choice.");
  const std::string type = members.String("type").value_or("");
  if (members.Bool("disable_parallel_tool_use").value_or(false)) (*converted)["parallel_tool_calls"] = false;
  if (type == "auto" || type == "none") {
    (*converted)["tool_choice"] = type;
  } else if (type == "any") {
    (*converted)["tool_choice"] = "required";
  } else if (type == "tool") {
    const auto name = members.String("name");
    if (!name) members.Fail("name", "is required where 'tool_choice.type' is 'tool'");
    (*converted)["tool_choice"] = {{"type", "function"}, {"function", {{"name", name.value_or("")}}}};
  } else {
    members.Fail("type", absl::StrCat("must be 'auto', 'any', 'tool' or 'none', found '", type, "'"));
  }
  if (members.error()) fields.Fail(*members.error());
}

void ReadTools(JsonFields& fields, Tools* tools) {
  fields.Describe("tools", ToolsSchema);
  fields.Describe("tool_choice", ChoiceSchema);
  ordered_json converted = ordered_json::object();
  const ordered_json* list = fields.Find("tools");
  if (list != nullptr && !list->is_array()) return fields.Fail("tools", "must be a list of tools");
  if (list != nullptr) {
    converted["tools"] = ordered_json::array();
    if (list->size() > kMaxTools) {
      return fields.Fail("tools", absl::StrCat("must be a list of at most ", kMaxTools, " tools"));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      ReadTool(fields, (*list)[i], absl::StrCat("tools[", i, "]"), &converted["tools"]);
    }
  }
  if (const ordered_json* choice = fields.Object("tool_choice")) ReadChoice(fields, *choice, &converted);
  if (fields.error()) return;
  JsonFields read(converted);
  ParseTools(read, tools);
  if (read.error()) fields.Fail(*read.error());
}

bool ClearsOnlyThinking(const ordered_json& management) {
  const ordered_json edits = management.value("edits", ordered_json::array());
  return edits.is_array() && absl::c_all_of(edits, [](const ordered_json& edit) {
           const ordered_json type = edit.is_object() ? edit.value("type", ordered_json()) : ordered_json();
           return type.is_string() && absl::StartsWith(type.get<std::string>(), "clear_thinking_");
         });
}

// Drops what was thought in earlier turns, but for the last ones that an edit says to keep: one, {"type": "thinking_turns",
// "value": N}, or "all".
void ClearThinking(const ordered_json& management, ordered_json* messages) {
  std::optional<uint64_t> kept;  // by the edit that keeps least
  for (const ordered_json& edit : management.value("edits", ordered_json::array())) {
    const ordered_json keep = edit.value("keep", ordered_json());
    if (keep == "all") continue;
    const ordered_json value = keep.is_object() ? keep.value("value", ordered_json()) : ordered_json();
    const uint64_t turns = value.is_number_unsigned() ? value.get<uint64_t>() : 1;
    kept = std::min(kept.value_or(turns), turns);
  }
  if (!kept) return;
  for (auto message = messages->rbegin(); message != messages->rend(); ++message) {
    if (!message->contains("reasoning_content")) continue;
    if (*kept > 0) {
      --*kept;
    } else {
      message->erase("reasoning_content");
    }
  }
}

void RefuseOthers(JsonFields& fields) {
  fields.Refuse("n", 1, ": an answer has one message");
  fields.Refuse("stop", nullptr, ": use 'stop_sequences'");
  fields.Refuse("response_format", nullptr, ": use 'output_config.format'");
  fields.Refuse("output_format", nullptr, ": use 'output_config.format'");
  fields.Refuse("logprobs", false, ": use /v1/chat/completions");
  fields.Refuse("top_logprobs", 0, ": use /v1/chat/completions");
  fields.Refuse("prompt_logprobs", false, ": use /v1/chat/completions");
  fields.Refuse("return_token_ids", false, ": use /v1/chat/completions");
  fields.Refuse("mcp_servers", nullptr, ": the gateway calls no servers of tools");
  fields.Refuse("container", nullptr, ": the gateway runs no tools");
  if (const ordered_json* management = fields.Object("context_management")) {
    if (!ClearsOnlyThinking(*management)) {
      fields.Fail(
          UnsupportedParameter("context_management.edits",
                               "'context_management.edits' can only clear thinking: the gateway leaves "
                               "everything else in the conversation"));
    }
  }
  RefuseUnserved(fields, Endpoint::kChat);
}

// {"type": "enabled", "budget_tokens"}, {"type": "adaptive"} or {"type": "disabled"}
void ReadThinking(JsonFields& fields, ThinkingWish* wish) {
  fields.Nested("thinking", [&](JsonFields& members, FieldSchema* schema) {
    schema->Require("type");
    members.Describe("type", [] {
      return ordered_json{{"enum", ordered_json::array({"enabled", "adaptive", "disabled"})}};
    });
    const std::string type = members.String("type").value_or("");
    ParseThinkingBudget(members, "budget_tokens", "thinking.budget_tokens", /*least=*/1, wish);
    if (fields.Find("thinking") == nullptr) return;
    if (type != "enabled" && type != "adaptive" && type != "disabled") {
      members.Fail("type", absl::StrCat("must be 'enabled', 'adaptive' or 'disabled', found '", type, "'"));
    }
    // 'adaptive' leaves it to the model whether it thinks.
    if (type == "adaptive") return;
    if (type == "disabled" || wish->effort.empty()) {
      wish->effort = type == "disabled" ? "none" : "high";
      wish->param = "thinking.type";
    }
    // Clients that want no thoughts do without them where a model has them nonetheless.
    wish->lenient = type == "disabled";
    if (type == "disabled") wish->budget.reset();
  });
}

// "high" is what a client sends that asks for nothing.
void ReadEffort(JsonFields& members, ThinkingWish* wish) {
  ThinkingWish effort;
  ParseEffort(members, "effort", "output_config.effort", &effort);
  if (effort.effort.empty() || effort.effort == "high") return;
  *wish = std::move(effort);
}

// {"format": {"type": "json_schema", "schema"}, "effort"}
void ReadOutputConfig(JsonFields& fields, CompletionRequest* request) {
  request->format_param = "output_config.format";
  fields.Nested("output_config", [&](JsonFields& members, FieldSchema*) {
    ParseFlatFormat(members, "format", /*plain_types=*/false, &request->constraint, &request->format_name);
    ReadEffort(members, &request->thinking);
  });
  ParseStructuredOutputs(fields, &request->constraint, &request->format_param);
}

// The messages, and whether the last one is to go on.
std::optional<ApiError> ReadMessages(JsonFields& fields, CompletionRequest* request) {
  if (const ordered_json* system = fields.Find("system")) {
    if (auto error = ParseSystem(*system, &request->messages)) return error;
  }
  const ordered_json* messages = fields.Find("messages");
  if (messages == nullptr) return InvalidParameter("messages", "'messages' is required");
  if (auto error = ParseConversation(*messages, &request->messages)) return error;
  if (const ordered_json* management = fields.Find("context_management")) {
    ClearThinking(*management, &request->messages);
  }
  const ordered_json& last = request->messages.back();
  if (last["role"] != "assistant") return std::nullopt;
  if (last.contains("tool_calls")) {
    return InvalidParameter("messages",
                            "'messages' end with a 'tool_use' block; its 'tool_result' must follow it");
  }
  request->continue_final_message = true;
  request->continue_param = "messages";
  request->template_arguments["add_generation_prompt"] = false;
  return std::nullopt;
}

std::optional<ApiError> ReadFields(JsonFields& fields, bool count, CompletionRequest* request) {
  request->chat = true;
  fields.Require("messages");
  fields.Describe("messages", ConversationSchema);
  fields.Describe("system", SystemSchema);
  if (!count) fields.Require("max_tokens");
  RefuseOthers(fields);
  ParseCommon(fields, request);
  ParseStop(fields, "stop_sequences", &request->sampling);
  ReadTools(fields, &request->tools);
  ReadOutputConfig(fields, request);
  ReadThinking(fields, &request->thinking);
  if (const ordered_json* arguments = fields.Object("chat_template_kwargs")) {
    request->template_arguments = *arguments;
  }
  ParseMaxTokens(fields, "max_tokens", request);
  if (!count && request->max_tokens_param.empty()) fields.Fail("max_tokens", "is required");
  // Clients must name a length, and name the largest that they know of: an answer ends where the context does.
  request->max_tokens_yields = true;
  if (fields.error()) return fields.error();
  return ReadMessages(fields, request);
}

std::optional<ApiError> Read(absl::string_view body, bool count, CompletionRequest* request) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  return ReadFields(fields, count, request);
}

}  // namespace

std::optional<ApiError> ParseMessagesRequest(absl::string_view body, CompletionRequest* request) {
  return Read(body, /*count=*/false, request);
}

std::optional<ApiError> ParseCountRequest(absl::string_view body, CompletionRequest* request) {
  return Read(body, /*count=*/true, request);
}

ordered_json DescribeMessagesBody(bool count) {
  return DescribeFields([&](JsonFields& fields) {
    CompletionRequest request;
    static_cast<void>(ReadFields(fields, count, &request));
  });
}

}  // namespace aludel
