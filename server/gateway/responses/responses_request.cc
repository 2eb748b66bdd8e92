#include "server/gateway/responses/responses_request.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/fields/response_format.h"
#include "server/gateway/openai/fields/structured_outputs.h"
#include "server/gateway/openai/fields/unserved_fields.h"
#include "server/gateway/responses/responses_input.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Arguments of a call may be nested as deeply as a body, and lie in a message.
constexpr int kMaxStoredDepth = 128;
constexpr size_t kMaxMetadata = 16;
constexpr size_t kMaxMetadataKey = 64;
constexpr size_t kMaxMetadataValue = 512;

// {"type": "function", "name"} as chat completions have it: {"type": "function", "function": {"name"}}.
ordered_json Nested(const ordered_json& flat) {
  ordered_json function = ordered_json::object();
  for (const auto& [name, value] : flat.items()) {
    if (name != "type") function[name] = value;
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

ordered_json ToolsSchema() {
  ordered_json tool = ordered_json::parse(R"({"type": "object", "required": ["type", "name"], "properties": {
      "type": {"const": "function"}, "description": {"type": "string"}, "parameters": {"type": "object"}}})");
  tool["properties"]["name"] = FunctionNameSchema();
  return {{"type", "array"}, {"items", std::move(tool)}, {"maxItems", kMaxTools}};
}

ordered_json ChoiceSchema() {
  return ordered_json::parse(R"({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]})");
}

void ReadTool(JsonFields& fields, const ordered_json& tool, const std::string& where, ordered_json* list) {
  if (!tool.is_object()) return fields.Fail(where, "must be an object");
  JsonFields members(tool, where + ".");
  const std::string type = members.String("type").value_or("");
  if (!members.error() && type != "function") {
    members.Fail(UnsupportedParameter(
        where + ".type", absl::StrCat("'", where,
                                      ".type': hosted and custom tools are not served, only 'function', "
                                      "found '",
                                      type, "'")));
  }
  const std::string name = members.String("name").value_or("");
  if (!IsFunctionName(name)) members.Fail("name", kFunctionNameForm);
  members.Object("parameters");
  if (members.error()) return fields.Fail(*members.error());
  for (const ordered_json& other : *list) {
    if (other["function"]["name"] == name) {
      return fields.Fail(where + ".name", absl::StrCat("names '", name, "' for the second time"));
    }
  }
  list->push_back(Nested(tool));
}

// "none", "auto", "required", {"type": "function", "name"}, or {"type": "allowed_tools", "mode", "tools"}.
ordered_json ConvertedChoice(const ordered_json& choice) {
  if (!choice.is_object()) return choice;
  const ordered_json type = choice.value("type", ordered_json());
  if (type == "function") return Nested(choice);
  if (type != "allowed_tools") return choice;
  ordered_json allowed = {{"mode", choice.value("mode", ordered_json())}, {"tools", ordered_json::array()}};
  const ordered_json tools = choice.value("tools", ordered_json());
  for (const ordered_json& tool : tools.is_array() ? tools : ordered_json::array()) {
    allowed["tools"].push_back(tool.is_object() ? Nested(tool) : tool);
  }
  return {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
}

void ReadTools(JsonFields& fields, Tools* tools) {
  fields.Describe("tools", ToolsSchema);
  fields.Describe("tool_choice", ChoiceSchema);
  fields.Describe("parallel_tool_calls", [] { return ordered_json{{"type", "boolean"}}; });
  ordered_json converted = ordered_json::object();
  const ordered_json* list = fields.Find("tools");
  if (list != nullptr) {
    if (!list->is_array() || list->size() > kMaxTools) {
      return fields.Fail("tools", absl::StrCat("must be a list of at most ", kMaxTools, " tools"));
    }
    converted["tools"] = ordered_json::array();
    for (size_t i = 0; i < list->size(); ++i) {
      ReadTool(fields, (*list)[i], absl::StrCat("tools[", i, "]"), &converted["tools"]);
    }
  }
  if (const ordered_json* choice = fields.Find("tool_choice"))
    converted["tool_choice"] = ConvertedChoice(*choice);
  if (const ordered_json* parallel = fields.Find("parallel_tool_calls")) {
    converted["parallel_tool_calls"] = *parallel;
  }
  if (fields.error()) return;
  JsonFields read(converted);
  ParseTools(read, tools);
  if (read.error()) fields.Fail(*read.error());
}

// {"format", "verbosity"}
void ReadText(JsonFields& fields, CompletionRequest* request) {
  request->format_param = "text.format";
  fields.Nested("text", [&](JsonFields& members, FieldSchema*) {
    ParseFlatFormat(members, "format", /*plain_types=*/true, &request->constraint, &request->format_name);
    members.Refuse("verbosity", "medium", ": the model has no verbosity to vary");
  });
  ParseStructuredOutputs(fields, &request->constraint, &request->format_param);
}

void RefuseOthers(JsonFields& fields) {
  fields.Refuse("background", false, ": an answer is made while its request waits");
  fields.Refuse("conversation", nullptr, ": use 'previous_response_id', or send the conversation in 'input'");
  fields.Refuse("context_management", nullptr, "");
  fields.Refuse("prompt", nullptr, ": the gateway keeps no prompt templates");
  fields.Refuse("truncation", "disabled", ": use 'truncate_prompt_tokens'");
  fields.Refuse("messages", nullptr, ": use 'input'");
  fields.Refuse("max_tokens", nullptr, ": use 'max_output_tokens'");
  fields.Refuse("response_format", nullptr, ": use 'text.format'");
  fields.Refuse("n", 1, ": a response is one answer");
  fields.Refuse("logprobs", false, ": use /v1/chat/completions");
  fields.Refuse("top_logprobs", 0, ": use /v1/chat/completions");
  fields.Refuse("prompt_logprobs", false, ": use /v1/chat/completions");
  fields.Refuse("return_token_ids", false, ": use /v1/chat/completions");
  fields.Describe("include", [] {
    return ordered_json{{"type", "array"}, {"items", {{"const", "reasoning.encrypted_content"}}}};
  });
  if (const ordered_json* include = fields.Find("include")) {
    if (!include->is_array()) fields.Fail("include", "must be a list of strings");
    for (const ordered_json& wanted : include->is_array() ? *include : ordered_json::array()) {
      // Items of reasoning hold their text, which needs no encryption to be sent back.
      if (wanted == "reasoning.encrypted_content") continue;
      fields.Fail(UnsupportedParameter(
          "include", absl::StrCat("'include' asks for ", Dump(wanted), ", which is not served")));
    }
  }
  RefuseUnserved(fields, Endpoint::kChat);
}

// As OpenAI has it: the answer repeats it.
void CheckMetadata(JsonFields& fields) {
  const ordered_json* metadata = fields.Object("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kMaxMetadata) {
    return fields.Fail("metadata",
                       absl::StrCat("must have at most ", kMaxMetadata, " pairs, found ", metadata->size()));
  }
  for (const auto& [key, value] : metadata->items()) {
    if (key.size() > kMaxMetadataKey || !value.is_string() ||
        value.get_ref<const std::string&>().size() > kMaxMetadataValue) {
      return fields.Fail("metadata", absl::StrCat("must have keys of at most ", kMaxMetadataKey,
                                                  " bytes, and strings of at most ", kMaxMetadataValue));
    }
  }
}

ApiError TooMuchCarried(absl::string_view param, size_t most) {
  return InvalidParameter(param,
                          absl::StrCat("'", param, "' brings more than ", most,
                                       " bytes of what is kept of earlier answers; send them in 'input'"));
}

std::optional<ApiError> ReadPrevious(const std::string& id, const ResponsesContext& context,
                                     ordered_json* messages, size_t* carried) {
  const absl::string_view param = "previous_response_id";
  if (!context.store->enabled()) {
    return UnsupportedParameter(param,
                                "'previous_response_id' is not supported: this gateway keeps no responses "
                                "(max_stored_responses is 0); send the conversation in 'input'");
  }
  const std::shared_ptr<const StoredResponse> previous = context.store->Find(context.client, id, context.now);
  if (previous == nullptr) {
    ApiError error =
        InvalidParameter(param, absl::StrCat("Previous response with id '", id,
                                             "' not found: it was not stored, is no longer kept, or was "
                                             "made by another gateway; send the conversation in 'input'"));
    error.code = "previous_response_not_found";
    return error;
  }
  if (previous->messages.size() > context.max_carried) return TooMuchCarried(param, context.max_carried);
  *carried += previous->messages.size();
  auto stored = ParseOrdered(previous->messages, kMaxStoredDepth);
  if (!stored.ok()) return FromStatus(param, stored.status());
  for (ordered_json& message : *stored) messages->push_back(std::move(message));
  return std::nullopt;
}

std::optional<ApiError> ReadConversation(JsonFields& fields, const ResponsesContext& context,
                                         CompletionRequest* request, ResponsesRequest* responses) {
  if (const auto instructions = fields.String("instructions"); instructions && !instructions->empty()) {
    request->messages.push_back({{"role", "system"}, {"content", *instructions}});
    responses->instructions = 1;
  }
  const std::string previous = fields.String("previous_response_id").value_or("");
  fields.Require("input");
  fields.Describe("input", InputSchema);
  const ordered_json* input = fields.Find("input");
  if (input == nullptr) fields.Fail("input", "is required");
  if (fields.error()) return fields.error();
  if (!previous.empty()) {
    if (auto error = ReadPrevious(previous, context, &request->messages, &responses->carried)) return error;
  }
  size_t carried = 0;
  const auto find = [&](const std::string& id) {
    std::shared_ptr<const std::string> item = context.store->FindItem(context.client, id, context.now);
    if (item != nullptr) carried += item->size();
    return carried <= context.max_carried ? item : nullptr;
  };
  const std::optional<ApiError> error = ParseInput(*input, find, &request->messages);
  responses->carried += carried;
  if (carried > context.max_carried) return TooMuchCarried("input", context.max_carried);
  if (!error && request->messages.size() == responses->instructions) {
    return InvalidParameter("input", "'input' says nothing");
  }
  return error;
}

// What the response object says of its request.
std::string Repeats(const ordered_json& object, const CompletionRequest& request,
                    const ResponsesRequest& responses) {
  const auto given = [&](const char* name, ordered_json otherwise) {
    const auto it = object.find(name);
    return it == object.end() || it->is_null() ? std::move(otherwise) : ordered_json(*it);
  };
  ordered_json text = given("text", ordered_json::object());
  const std::string& effort = request.thinking.effort;
  if (!text.contains("format") || text["format"].is_null()) text["format"] = {{"type", "text"}};
  return Dump(
      {{"instructions", given("instructions", nullptr)},
       {"max_output_tokens", given("max_output_tokens", nullptr)},
       {"metadata", given("metadata", ordered_json::object())},
       {"parallel_tool_calls", request.tools.parallel},
       {"previous_response_id", given("previous_response_id", nullptr)},
       {"prompt_cache_key", given("prompt_cache_key", nullptr)},
       {"reasoning",
        {{"effort", effort.empty() ? ordered_json(nullptr) : ordered_json(effort)}, {"summary", nullptr}}},
       {"store", responses.store},
       {"temperature", given("temperature", nullptr)},
       {"text", std::move(text)},
       {"tool_choice", given("tool_choice", "auto")},
       {"tools", given("tools", ordered_json::array())},
       {"top_p", given("top_p", nullptr)},
       {"truncation", "disabled"},
       {"user", given("user", nullptr)}});
}

std::optional<ApiError> ReadFields(JsonFields& fields, const ResponsesContext& context,
                                   CompletionRequest* request, ResponsesRequest* responses) {
  request->chat = true;
  request->prompt_param = "input";
  RefuseOthers(fields);
  ParseCommon(fields, request);
  ReadTools(fields, &request->tools);
  ReadText(fields, request);
  if (const ordered_json* arguments = fields.Object("chat_template_kwargs")) {
    request->template_arguments = *arguments;
  }
  fields.Nested("reasoning", [&](JsonFields& members, FieldSchema*) {
    ParseEffort(members, "effort", "reasoning.effort", &request->thinking);
  });
  ParseThinkingBudget(fields, "thinking_token_budget", "thinking_token_budget", /*least=*/0,
                      &request->thinking);
  ParseMaxTokens(fields, "max_output_tokens", request);
  CheckMetadata(fields);
  fields.String("user");
  const bool store = fields.Bool("store").value_or(true);
  responses->store = store && context.store->enabled();
  if (!store) request->no_capture = true;
  return ReadConversation(fields, context, request, responses);
}

}  // namespace

std::optional<ApiError> ParseResponsesRequest(absl::string_view body, const ResponsesContext& context,
                                              CompletionRequest* request, ResponsesRequest* responses) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  if (auto error = ReadFields(fields, context, request, responses)) return error;
  responses->repeats = Repeats(object, *request, *responses);
  return std::nullopt;
}

ordered_json DescribeResponsesBody() {
  return DescribeFields([](JsonFields& fields) {
    ResponseStore store({});
    CompletionRequest request;
    ResponsesRequest responses;
    static_cast<void>(ReadFields(fields, {.store = &store}, &request, &responses));
  });
}

}  // namespace aludel
