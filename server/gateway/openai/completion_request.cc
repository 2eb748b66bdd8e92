#include "server/gateway/openai/completion_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/engine/engine_options.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/openai/chat_messages.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/fields/response_format.h"
#include "server/gateway/openai/fields/sampling_fields.h"
#include "server/gateway/openai/fields/structured_outputs.h"
#include "server/gateway/openai/fields/token_ids.h"
#include "server/gateway/openai/fields/unserved_fields.h"
#include "server/gateway/openai/fields/workflow_fields.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Copying a value recurses, so what a client nests must not use up a stack.
constexpr int kMaxBodyDepth = 128;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
// OpenAI's default for the older endpoint.
constexpr uint32_t kDefaultPlainMaxTokens = 16;
constexpr int64_t kMaxTimeoutMs = 24 * 60 * 60 * 1000;
constexpr int64_t kMaxStalenessMs = int64_t{1} << 40;
constexpr size_t kMaxCacheNameBytes = 256;
constexpr int64_t kMaxPromptLogprobs = 20;

constexpr std::pair<absl::string_view, v1::Fidelity> kFidelities[] = {{"exact", v1::FIDELITY_EXACT},
                                                                      {"high", v1::FIDELITY_HIGH},
                                                                      {"balanced", v1::FIDELITY_BALANCED},
                                                                      {"fast", v1::FIDELITY_FAST}};

void CheckExtensionNames(const ordered_json& object, JsonFields& extension) {
  for (const auto& item : object.items()) {
    if (item.key() != "fidelity" && item.key() != "format" && item.key() != "timeout_ms" &&
        item.key() != "max_staleness_ms" && item.key() != "store" && item.key() != "trace" &&
        item.key() != "workflow") {
      extension.Fail(
          item.key(),
          "is not known; expected 'fidelity', 'format', 'max_staleness_ms', 'store', 'timeout_ms', "
          "'trace' or 'workflow'");
    }
  }
}

void ReadExtensions(JsonFields& extension, FieldSchema* schema, CompletionRequest* request) {
  schema->Close();
  extension.Describe("fidelity", [] {
    ordered_json names = ordered_json::array();
    for (const auto& [name, fidelity] : kFidelities) names.push_back(std::string(name));
    return ordered_json{{"enum", std::move(names)}};
  });
  if (const auto fidelity = extension.String("fidelity")) {
    const auto known = std::find_if(std::begin(kFidelities), std::end(kFidelities),
                                    [&](const auto& one) { return *fidelity == one.first; });
    if (known != std::end(kFidelities)) {
      request->fidelity = known->second;
    } else {
      extension.Fail("fidelity",
                     absl::StrCat("must be 'exact', 'high', 'balanced' or 'fast', found '", *fidelity, "'",
                                  *fidelity == "coded" ? ", whose name is 'fast'" : ""));
    }
  }
  request->format = extension.String("format").value_or("");
  if (!request->format.empty() && request->fidelity == v1::FIDELITY_EXACT) {
    extension.Fail("format", "cannot be forced where 'aludel.fidelity' is 'exact'");
  }
  request->max_staleness_ms = extension.Integer("max_staleness_ms", 0, kMaxStalenessMs);
  if (const auto timeout = extension.Integer("timeout_ms", 1, kMaxTimeoutMs)) {
    request->timeout = absl::Milliseconds(*timeout);
  }
  request->no_store = request->no_capture = !extension.Bool("store").value_or(true);
  request->trace = extension.Bool("trace").value_or(false);
  request->workflow = ReadWorkflow(extension);
}

void ParseExtensions(JsonFields& fields, CompletionRequest* request) {
  fields.Nested("aludel", [&](JsonFields& extension, FieldSchema* schema) {
    const ordered_json* object = fields.Find("aludel");
    if (object != nullptr) CheckExtensionNames(*object, extension);
    ReadExtensions(extension, schema, request);
  });
}

// What both endpoints share.
void ParseShared(JsonFields& fields, CompletionRequest* request) {
  ParseCommon(fields, request);
  // The Responses API's own "store" is about answers, and clients that resend everything send false with each request.
  if (!fields.Bool("store").value_or(true)) request->no_store = request->no_capture = true;
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  if (!request->stream && fields.Find("stream_options") != nullptr) {
    fields.Fail("stream_options", "is only allowed when 'stream' is true");
  }
  fields.Nested("stream_options", [&](JsonFields& options, FieldSchema*) {
    request->include_usage = options.Bool("include_usage").value_or(false);
    options.Refuse("continuous_usage_stats", false, ": the last chunk has the usage");
  });
  ParseResponseFormat(fields, &request->constraint, &request->format_name);
  ParseStructuredOutputs(fields, &request->constraint, &request->format_param);
}

// A template that is to begin a message cannot leave the last one open.
void ParseContinuation(JsonFields& fields, CompletionRequest* request) {
  request->continue_final_message = fields.Bool("continue_final_message").value_or(false);
  const std::optional<bool> begin = fields.Bool("add_generation_prompt");
  if (begin) request->template_arguments["add_generation_prompt"] = *begin;
  if (!request->continue_final_message) return;
  if (begin.value_or(false)) {
    fields.Fail("continue_final_message", "cannot be true where 'add_generation_prompt' is");
  }
  request->template_arguments["add_generation_prompt"] = false;
}

void RefuseBestOf(JsonFields& fields, const v1::SamplingParams& sampling) {
  fields.Refuse("best_of", sampling.choices(), ": every choice is returned, so it can only be 'n'");
}

void ParseOnePrompt(JsonFields& fields, const ordered_json& prompt, const std::string& name,
                    CompletionRequest* request) {
  PlainPrompt& parsed = request->prompts.emplace_back();
  if (prompt.is_string()) {
    parsed.text = prompt.get<std::string>();
  } else if (!prompt.is_array() || prompt.empty()) {
    fields.Fail(InvalidParameter(
        name, absl::StrCat("'", name, "' must be a string or a list of token ids, with one at least")));
  } else if (auto error = ParseTokenIds(prompt, name, &parsed.ids)) {
    fields.Fail(*std::move(error));
  }
}

void ParsePrompts(JsonFields& fields, CompletionRequest* request) {
  fields.Require("prompt");
  fields.Describe("prompt", [] {
    const ordered_json text = {{"type", "string"}};
    const ordered_json ids = {{"type", "array"}, {"items", TokenIdSchema()}, {"minItems", 1}};
    const ordered_json several = {{"type", "array"},
                                  {"items", {{"anyOf", ordered_json::array({text, ids})}}},
                                  {"minItems", 1},
                                  {"maxItems", kMaxPrompts}};
    return ordered_json{{"anyOf", ordered_json::array({text, ids, several})}};
  });
  const ordered_json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail("prompt", "is required");
  // A list of numbers is one prompt.
  if (!prompt->is_array() || prompt->empty() || prompt->front().is_number()) {
    return ParseOnePrompt(fields, *prompt, "prompt", request);
  }
  const size_t choices = prompt->size() * request->sampling.choices();
  if (prompt->size() > kMaxPrompts || choices > kMaxPromptChoices) {
    return fields.Fail("prompt", absl::StrCat("holds ", prompt->size(), " prompts, of ",
                                              request->sampling.choices(), " choices each; want at most ",
                                              kMaxPrompts, " prompts and ", kMaxPromptChoices, " choices"));
  }
  for (size_t i = 0; i < prompt->size() && !fields.error(); ++i) {
    const std::string name = prompt->size() == 1 ? "prompt" : absl::StrCat("prompt[", i, "]");
    ParseOnePrompt(fields, (*prompt)[i], name, request);
  }
}

// The model's numbers for the prompt, which a handoff does not bring.
void ParsePromptLogprobs(JsonFields& fields, CompletionRequest* request) {
  const ordered_json* const asked = fields.Find("prompt_logprobs");
  const bool off = asked != nullptr && *asked == false;
  if (const auto top = off ? std::nullopt : fields.Integer("prompt_logprobs", 0, kMaxPromptLogprobs)) {
    request->prompt_logprobs = static_cast<int>(*top);
    // As in vLLM.
    if (request->stream) fields.Fail("prompt_logprobs", "is not served where 'stream' is true");
  }
  v1::SamplingParams& sampling = request->sampling;
  const bool echoed = request->echo && sampling.has_top_logprobs();
  if (!request->prompt_logprobs && !echoed) return;
  const uint32_t in_echo = echoed ? sampling.top_logprobs() : 0;
  sampling.set_prompt_logprobs(
      std::max(in_echo, static_cast<uint32_t>(request->prompt_logprobs.value_or(0))));
  request->fidelity = v1::FIDELITY_EXACT;
  if (!request->format.empty()) {
    fields.Fail(InvalidParameter("aludel.format",
                                 "'aludel.format' cannot be forced where log-probabilities of the prompt are "
                                 "asked for: these take the decode server's own prefill"));
  }
}

// 0 is for what the prompt alone gives.
void ParsePlainMaxTokens(JsonFields& fields, CompletionRequest* request) {
  const auto max_tokens = fields.Integer("max_tokens", 0, kMaxTokens);
  request->sampling.set_max_tokens(static_cast<uint32_t>(max_tokens.value_or(kDefaultPlainMaxTokens)));
  if (!max_tokens) return;
  request->max_tokens_param = "max_tokens";
  if (*max_tokens > 0) return;
  request->sampling.set_no_answer(true);
  if (!request->echo && !request->prompt_logprobs) {
    fields.Fail("max_tokens", "must be at least 1, or 0 beside 'echo' or 'prompt_logprobs'; found 0");
  }
}

// Of 1 to kMaxCacheNameBytes; "": there is none.
std::string ParseCacheName(JsonFields& fields, const char* field) {
  fields.Describe(field, [] {
    return ordered_json{{"type", "string"}, {"minLength", 1}, {"maxLength", kMaxCacheNameBytes}};
  });
  const auto name = fields.String(field);
  if (!name) return "";
  if (name->empty() || name->size() > kMaxCacheNameBytes) {
    fields.Fail(field, absl::StrCat("must have 1 to ", kMaxCacheNameBytes, " bytes, found ", name->size()));
  }
  return *name;
}

}  // namespace

void ParseCommon(JsonFields& fields, CompletionRequest* request) {
  fields.Require("model");
  request->model = fields.String("model").value_or("");
  if (!fields.error() && request->model.empty()) fields.Fail("model", "is required");
  ParseSampling(fields, &request->sampling);
  ParseBadWords(fields, &request->bad_words);
  request->truncate_prompt_tokens = fields.Integer("truncate_prompt_tokens", -1, kMaxTokens);
  if (request->truncate_prompt_tokens == 0) request->truncate_prompt_tokens.reset();
  request->stream = fields.Bool("stream").value_or(false);
  // As vLLM has them.
  request->priority = static_cast<int>(fields.Integer("priority", -kMaxPriority, kMaxPriority).value_or(0));
  request->cache_salt = ParseCacheName(fields, "cache_salt");
  request->prompt_cache_key = ParseCacheName(fields, "prompt_cache_key");
  ParseExtensions(fields, request);
}

void ParseMaxTokens(JsonFields& fields, const char* name, CompletionRequest* request) {
  const auto max_tokens = fields.Integer(name, 1, kMaxTokens);
  if (!max_tokens) return;
  request->sampling.set_max_tokens(static_cast<uint32_t>(*max_tokens));
  request->max_tokens_param = name;
}

std::optional<ApiError> ParseObject(absl::string_view body, ordered_json* object) {
  absl::StatusOr<ordered_json> parsed = ParseOrdered(body, kMaxBodyDepth);
  if (parsed.ok() && parsed->is_object()) {
    *object = *std::move(parsed);
    return std::nullopt;
  }
  if (absl::IsCancelled(parsed.status())) return FromStatus("", parsed.status());
  ApiError error;
  error.message = "We could not parse the JSON body of your request: it ";
  if (parsed.ok()) {
    absl::StrAppend(&error.message, "is ", parsed->type_name(), ", want one JSON object");
  } else {
    absl::StrAppend(&error.message, std::string(parsed.status().message()));
  }
  return error;
}

std::optional<ApiError> ParseChatRequest(absl::string_view body, CompletionRequest* request) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  return ReadChatRequest(object, request);
}

namespace {

std::optional<ApiError> ReadChat(JsonFields& fields, CompletionRequest* request) {
  request->chat = true;
  fields.Require("messages");
  fields.Describe("messages", MessagesSchema);
  ParseShared(fields, request);
  ParseTools(fields, &request->tools);
  if (const ordered_json* arguments = fields.Object("chat_template_kwargs")) {
    request->template_arguments = *arguments;
  }
  ParseContinuation(fields, request);
  ParseEffort(fields, "reasoning_effort", "reasoning_effort", &request->thinking);
  ParseThinkingBudget(fields, "thinking_token_budget", "thinking_token_budget", /*least=*/0,
                      &request->thinking);
  ParseChatLogprobs(fields, &request->sampling);
  ParsePromptLogprobs(fields, request);
  RefuseUnserved(fields, Endpoint::kChat);
  RefuseBestOf(fields, request->sampling);
  // The newer name wins; both count the same tokens here, as nothing is generated that is not shown.
  ParseMaxTokens(fields, "max_tokens", request);
  ParseMaxTokens(fields, "max_completion_tokens", request);
  if (fields.error()) return fields.error();
  const ordered_json* messages = fields.Find("messages");
  if (messages == nullptr) return InvalidParameter("messages", "'messages' is required");
  return ParseMessages(*messages, &request->messages);
}

std::optional<ApiError> ReadPlain(JsonFields& fields, CompletionRequest* request) {
  request->chat = false;
  request->prompt_param = "prompt";
  ParseShared(fields, request);
  request->echo = fields.Bool("echo").value_or(false);
  ParsePlainLogprobs(fields, &request->sampling);
  ParsePromptLogprobs(fields, request);
  RefuseUnserved(fields, Endpoint::kPlain);
  RefuseBestOf(fields, request->sampling);
  ParsePlainMaxTokens(fields, request);
  ParsePrompts(fields, request);
  return fields.error();
}

}  // namespace

std::optional<ApiError> ReadChatRequest(const ordered_json& object, CompletionRequest* request) {
  JsonFields fields(object);
  return ReadChat(fields, request);
}

ordered_json DescribeCompletionBody(bool chat) {
  return DescribeFields([&](JsonFields& fields) {
    CompletionRequest request;
    static_cast<void>(chat ? ReadChat(fields, &request) : ReadPlain(fields, &request));
  });
}

std::optional<ApiError> ParseCompletionRequest(absl::string_view body, CompletionRequest* request) {
  ordered_json object;
  if (auto error = ParseObject(body, &object)) return error;
  JsonFields fields(object);
  return ReadPlain(fields, request);
}

}  // namespace aludel
