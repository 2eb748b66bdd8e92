#include "server/gateway/openapi/openapi.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/gateway/anthropic/messages_request.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/model/adapter_requests.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/responses/responses_request.h"
#include "server/gateway/routes.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// What the routes do not say of themselves.
struct Described {
  absl::string_view path;
  absl::string_view method = "";  // "": the route's first
  absl::string_view summary;
  absl::string_view answer = "";  // a name of kAnswerSchemas; "": no JSON
  ordered_json (*body)() = nullptr;
  bool streams = false;
};

const Described kDescribed[] = {
    {.path = "/v1/chat/completions",
     .summary = "The next message of a conversation",
     .answer = "ChatCompletion",
     .body = [] { return DescribeCompletionBody(/*chat=*/true); },
     .streams = true},
    {.path = "/v1/completions",
     .summary = "What follows a text, or several",
     .answer = "Completion",
     .body = [] { return DescribeCompletionBody(/*chat=*/false); },
     .streams = true},
    {.path = "/v1/messages",
     .summary = "The next message of a conversation, as Anthropic's clients ask for it",
     .answer = "Message",
     .body = [] { return DescribeMessagesBody(/*count=*/false); },
     .streams = true},
    {.path = "/v1/messages/count_tokens",
     .summary = "How many tokens the prompt of such a conversation has",
     .answer = "TokenCount",
     .body = [] { return DescribeMessagesBody(/*count=*/true); }},
    {.path = "/v1/responses",
     .summary = "The next items of a conversation, which may be kept",
     .answer = "Response",
     .body = DescribeResponsesBody,
     .streams = true},
    {.path = "/v1/responses/*", .summary = "An answer that was kept", .answer = "Response"},
    {.path = "/v1/responses/*",
     .method = "DELETE",
     .summary = "Forgets an answer that was kept",
     .answer = "Deleted"},
    {.path = "/v1/models", .summary = "The models", .answer = "Models"},
    {.path = "/v1/models/*", .summary = "One model", .answer = "Model"},
    {.path = "/v1/load_lora_adapter",
     .summary = "Serves a LoRA adapter from now on; for administrators' keys",
     .body = DescribeLoadAdapterBody},
    {.path = "/v1/unload_lora_adapter",
     .summary = "Serves a LoRA adapter no more; for administrators' keys",
     .body = DescribeUnloadAdapterBody},
    {.path = "/tokenize",
     .summary = "A text or a conversation as token ids",
     .answer = "Tokens",
     .body = DescribeTokenizeBody},
    {.path = "/detokenize",
     .summary = "Token ids as a text",
     .answer = "Text",
     .body = DescribeDetokenizeBody},
    {.path = "/health", .summary = "Whether the process answers", .answer = "Status"},
    {.path = "/ready", .summary = "Whether a model can be served", .answer = "Readiness"},
    {.path = "/version", .summary = "The version", .answer = "Version"},
    {.path = "/load", .summary = "Requests that run and that wait", .answer = "Load"},
    {.path = "/server_info", .summary = "The models' limits and states", .answer = "ServerInfo"},
    {.path = "/reset_prefix_cache", .summary = "Forgets all cached prefixes", .answer = "Status"},
    {.path = "/admin/routing", .summary = "Where a prompt would go, and why", .answer = "Routing"},
    {.path = "/metrics", .summary = "Figures for Prometheus"},
    {.path = "/openapi.json", .summary = "This description"},
    {.path = "/docs", .summary = "The same as a page"},
    {.path = "/", .summary = "The chat page"},
};

const Described& DescriptionOf(absl::string_view path, absl::string_view method) {
  static const Described kNone{};
  const auto found = std::find_if(std::begin(kDescribed), std::end(kDescribed), [&](const Described& one) {
    return one.path == path && one.method == method;
  });
  return found == std::end(kDescribed) ? kNone : *found;
}

ordered_json Content(ordered_json schema) { return {{"application/json", {{"schema", std::move(schema)}}}}; }

ordered_json Reference(absl::string_view name) {
  return {{"$ref", absl::StrCat("#/components/schemas/", name)}};
}

// Errors, and which routes give them. 500 is none of them: it would be our fault.
struct Failure {
  const char* status;
  const char* description;
  bool (*given)(const Route& route);
};

bool Always(const Route&) { return true; }
bool NeedsKey(const Route& route) { return !route.open; }
bool NamesAThing(const Route& route) {
  return route.TakesBody() || absl::EndsWith(route.path, "*") || route.path == "/ready" ||
         route.path == "/admin/routing";
}
bool Manages(const Route& route) { return route.manages; }
bool TakesBody(const Route& route) { return route.TakesBody(); }
bool Metered(const Route& route) { return route.metered || route.completion; }

constexpr Failure kFailures[] = {
    {"400", "Malformed, out of range, or not served", Always},
    {"401", "No key, or a wrong one", NeedsKey},
    {"403", "The key is none of an administrator's", Manages},
    {"404", "No such model or answer", NamesAThing},
    {"408", "The request is too slow", Always},
    {"413", "The body is too long, or there should be none", Always},
    {"415", "The body is compressed", Always},
    {"422", "Valid, but larger than any server can hold", TakesBody},
    {"429", "More than the key may, or than can be served in time", Metered},
    {"431", "The header is too long", Always},
    {"501", "A transfer encoding other than chunked", Always},
    {"503", "No server is ready for it, or the gateway is full", Always},
    {"504", "The deadline passed", TakesBody},
};

ordered_json Operation(const Route& route, absl::string_view method = "") {
  const Described& described = DescriptionOf(route.path, method);
  ordered_json operation;
  operation["summary"] = std::string(described.summary);
  if (!route.open) operation["security"] = ordered_json::array({{{"key", ordered_json::array()}}});
  if (absl::EndsWith(route.path, "*")) {
    operation["parameters"] = ordered_json::array(
        {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (route.TakesBody() && method.empty()) {
    ordered_json schema = described.body == nullptr ? ordered_json{{"type", "object"}} : described.body();
    operation["requestBody"] = {{"required", true}, {"content", Content(std::move(schema))}};
  }
  ordered_json answer = {
      {"description", described.streams ? "The answer; with \"stream\", events of it" : "The answer"}};
  if (!described.answer.empty()) answer["content"] = Content(Reference(described.answer));
  if (described.streams) answer["content"]["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  operation["responses"]["200"] = std::move(answer);
  for (const Failure& failure : kFailures) {
    if (!failure.given(route)) continue;
    // Those that say how the process is have their own words for 503.
    if (route.at_once && absl::string_view(failure.status) == "503") {
      ordered_json same = operation["responses"]["200"];
      operation["responses"]["503"] = std::move(same);
      continue;
    }
    operation["responses"][failure.status] = {
        {"description", failure.description},
        {"content", Content(Reference(route.anthropic ? "AnthropicError" : "Error"))}};
  }
  return operation;
}

ordered_json MakeDocument() {
  ordered_json json;
  json["openapi"] = "3.1.0";
  json["info"] = {{"title", "aludel-gateway"}, {"version", ALUDEL_VERSION}};
  for (const Route& route : Routes()) {
    absl::string_view path = route.path;
    const bool named = absl::ConsumeSuffix(&path, "*");
    ordered_json& operations = json["paths"][absl::StrCat(path, named ? "{id}" : "")];
    operations[absl::AsciiStrToLower(route.method)] = Operation(route);
    if (route.deletes) operations["delete"] = Operation(route, "DELETE");
  }
  json["components"]["schemas"] = ordered_json::parse(kAnswerSchemas);
  json["components"]["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  return json;
}

}  // namespace

const ordered_json& OpenApi() {
  static const auto* const made = new ordered_json(MakeDocument());
  return *made;
}

}  // namespace aludel
