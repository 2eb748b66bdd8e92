#include "server/store/control/store_api.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxDepth = 4;  // of JSON

HttpResponse Json(int status, const ordered_json& body) {
  return {.status = status, .body = body.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n"};
}

HttpResponse Refuse(int status, absl::string_view why) {
  HttpResponse response = Json(status, {{"error", std::string(why)}});
  if (status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  response.error = std::string(why);
  return response;
}

HttpResponse Refuse(const absl::Status& status) {
  const int code = absl::IsInvalidArgument(status) ? 400 : absl::IsResourceExhausted(status) ? 409 : 503;
  return Refuse(code, status.message());
}

absl::StatusOr<ordered_json> ParseBody(absl::string_view body) {
  if (body.empty()) return ordered_json::object();
  int depth = 0;
  int deepest = 0;
  for (const char c : body) {  // parsing recurses
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    deepest = std::max(deepest, depth);
  }
  ordered_json parsed;
  if (deepest <= kMaxDepth) parsed = ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError("the body is not one JSON object");
  for (const auto& item : parsed.items()) {
    constexpr absl::string_view kNames[] = {"tokens", "format", "key",          "cache_salt", "tenant",
                                            "ttl_s",  "all",    "memory_bytes", "disk_bytes", "limit"};
    if (std::find(std::begin(kNames), std::end(kNames), item.key()) == std::end(kNames)) {
      return absl::InvalidArgumentError(absl::StrCat("'", item.key(), "' is not known"));
    }
  }
  return parsed;
}

// Of one body. What is not there is not set; a value of the wrong type is an error.
class Fields {
 public:
  explicit Fields(const ordered_json& body) : body_(body) {}

  std::optional<std::string> Text(const char* name) {
    const auto found = body_.find(name);
    if (found == body_.end()) return std::nullopt;
    if (found->is_string()) return found->get<std::string>();
    Fail(absl::StrCat("'", name, "' is not a string"));
    return std::nullopt;
  }
  std::optional<int64_t> Number(const char* name) {
    const auto found = body_.find(name);
    if (found == body_.end()) return std::nullopt;
    if (IsWhole(*found)) return found->get<int64_t>();
    Fail(absl::StrCat("'", name, "' is not a whole number, or too large"));
    return std::nullopt;
  }
  void Tokens(v1::StoredPrompt* to) {
    const auto found = body_.find("tokens");
    if (found == body_.end() || !found->is_array()) return Fail("'tokens' is not a list of token ids");
    for (const ordered_json& token : *found) {
      const bool fits = IsWhole(token) && token.get<int64_t>() >= 0 && token.get<int64_t>() <= INT32_MAX;
      if (!fits) return Fail("'tokens' has one that is not a token id");
      to->add_tokens(token.get<int32_t>());
    }
  }
  bool Has(const char* name) const { return body_.contains(name); }
  bool IsTrue(const char* name) const { return Has(name) && body_[name] == true; }
  void Fail(std::string why) { status_.Update(absl::InvalidArgumentError(std::move(why))); }
  const absl::Status& status() const { return status_; }

 private:
  static bool IsWhole(const ordered_json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  }

  const ordered_json& body_;
  absl::Status status_;
};

v1::StoredPrompt ReadPrompt(Fields& fields) {
  v1::StoredPrompt prompt;
  if (fields.Has("tenant")) fields.Fail("'tenant' names no salt: want 'key' or 'cache_salt'");
  prompt.set_format(fields.Text("format").value_or(""));
  prompt.set_key(fields.Text("key").value_or(""));
  prompt.set_cache_salt(fields.Text("cache_salt").value_or(""));
  fields.Tokens(&prompt);
  return prompt;
}

v1::StoredOf ReadOf(Fields& fields) {
  v1::StoredOf of;
  if (const auto key = fields.Text("key")) of.set_key(*key);
  if (const auto salt = fields.Text("cache_salt")) of.set_cache_salt(*salt);
  if (const auto tenant = fields.Text("tenant")) of.set_tenant(*tenant);
  if (const auto format = fields.Text("format")) of.set_format(*format);
  return of;
}

// Waits for the command's end.
template <typename Request, typename Response>
absl::StatusOr<Response> Await(const StoreCommands& commands, const Fields& fields, const Request& request,
                               void (StoreCommands::*command)(const Request&, StoreCommands::Done<Response>)
                                   const) {
  ALUDEL_RETURN_IF_ERROR(fields.status());
  absl::Notification ended;
  absl::StatusOr<Response> result;
  (commands.*command)(request, [&](absl::StatusOr<Response> response) {
    result = std::move(response);
    ended.Notify();
  });
  ended.WaitForNotification();
  return result;
}

absl::StatusOr<ordered_json> Lookup(const StoreCommands& commands, Fields& fields) {
  v1::LookupRequest request;
  *request.mutable_prompt() = ReadPrompt(fields);
  ALUDEL_ASSIGN_OR_RETURN(const v1::LookupResponse found,
                          Await(commands, fields, request, &StoreCommands::Lookup));
  ordered_json keys = ordered_json::array();
  for (const std::string& key : found.chunks()) keys.push_back(absl::BytesToHexString(key));
  return ordered_json{{"tokens", found.tokens()},
                      {"memory_tokens", found.memory_tokens()},
                      {"disk_tokens", found.disk_tokens()},
                      {"remote_tokens", found.remote_tokens()},
                      {"chunks", std::move(keys)}};
}

absl::StatusOr<ordered_json> Prefetch(const StoreCommands& commands, Fields& fields) {
  v1::PrefetchRequest request;
  *request.mutable_prompt() = ReadPrompt(fields);
  ALUDEL_ASSIGN_OR_RETURN(const v1::PrefetchResponse response,
                          Await(commands, fields, request, &StoreCommands::Prefetch));
  return ordered_json{{"loading_tokens", response.loading_tokens()}};
}

absl::StatusOr<ordered_json> Pin(const StoreCommands& commands, Fields& fields) {
  v1::PinRequest request;
  *request.mutable_prompt() = ReadPrompt(fields);
  if (const auto ttl = fields.Number("ttl_s")) request.set_ttl_s(*ttl);
  ALUDEL_ASSIGN_OR_RETURN(const v1::PinResponse response,
                          Await(commands, fields, request, &StoreCommands::Pin));
  return ordered_json{{"tokens", response.tokens()}};
}

absl::StatusOr<ordered_json> Unpin(const StoreCommands& commands, Fields& fields) {
  v1::UnpinRequest request;
  *request.mutable_prompt() = ReadPrompt(fields);
  ALUDEL_ASSIGN_OR_RETURN(const v1::UnpinResponse response,
                          Await(commands, fields, request, &StoreCommands::Unpin));
  return ordered_json{{"tokens", response.tokens()}};
}

absl::StatusOr<ordered_json> Clear(const StoreCommands& commands, Fields& fields) {
  v1::ClearRequest request;
  request.set_all(fields.IsTrue("all"));
  if (fields.Has("tokens")) {
    *request.mutable_prompt() = ReadPrompt(fields);
  } else {
    *request.mutable_of() = ReadOf(fields);
  }
  ALUDEL_ASSIGN_OR_RETURN(const v1::ClearResponse response,
                          Await(commands, fields, request, &StoreCommands::Clear));
  ordered_json answer = {{"status", "cleared"}};
  if (response.has_chunks()) answer["chunks"] = response.chunks();
  return answer;
}

absl::StatusOr<ordered_json> List(const StoreCommands& commands, Fields& fields) {
  v1::ListRequest request;
  if (fields.Has("tokens")) fields.Fail("'tokens' is not served here: see /store/lookup");
  *request.mutable_of() = ReadOf(fields);
  if (const auto limit = fields.Number("limit")) request.set_limit(*limit);
  ALUDEL_ASSIGN_OR_RETURN(const v1::ListResponse listed,
                          Await(commands, fields, request, &StoreCommands::List));
  ordered_json chunks = ordered_json::array();
  for (const v1::ListedChunk& chunk : listed.chunks()) {
    chunks.push_back({{"key", absl::BytesToHexString(chunk.key())},
                      {"tenant", chunk.tenant()},
                      {"token_begin", chunk.token_begin()},
                      {"tokens", chunk.tokens()},
                      {"memory_bytes", chunk.memory_bytes()},
                      {"disk_bytes", chunk.disk_bytes()},
                      {"remote", chunk.remote()},
                      {"pinned_s", chunk.pinned_s()}});
  }
  return ordered_json{{"chunks", std::move(chunks)}};
}

absl::StatusOr<ordered_json> Tenants(const StoreCommands& commands, Fields& fields) {
  ALUDEL_ASSIGN_OR_RETURN(const v1::TenantsResponse response,
                          Await(commands, fields, v1::TenantsRequest(), &StoreCommands::Tenants));
  ordered_json tenants = ordered_json::array();
  for (const v1::StoreTenant& tenant : response.tenants()) {
    tenants.push_back(
        {{"tenant", tenant.tenant()},
         {"memory_bytes", tenant.memory_bytes()},
         {"memory_chunks", tenant.memory_chunks()},
         {"disk_bytes", tenant.disk_bytes()},
         {"disk_chunks", tenant.disk_chunks()},
         {"quota",
          {{"memory_bytes", tenant.quota_memory_bytes()}, {"disk_bytes", tenant.quota_disk_bytes()}}}});
  }
  return ordered_json{{"tenants", std::move(tenants)}};
}

absl::StatusOr<ordered_json> Quota(const StoreCommands& commands, Fields& fields) {
  v1::QuotaRequest request;
  if (fields.Has("cache_salt"))
    fields.Fail("'cache_salt' is not served here: a quota is of all salts of a key");
  if (const auto key = fields.Text("key")) request.set_key(*key);
  if (const auto tenant = fields.Text("tenant")) request.set_tenant(*tenant);
  if (const auto bytes = fields.Number("memory_bytes")) request.set_memory_bytes(*bytes);
  if (const auto bytes = fields.Number("disk_bytes")) request.set_disk_bytes(*bytes);
  ALUDEL_ASSIGN_OR_RETURN(const v1::QuotaResponse response,
                          Await(commands, fields, request, &StoreCommands::Quota));
  return ordered_json{{"tenant", response.tenant()}};
}

struct Route {
  absl::string_view path;
  absl::StatusOr<ordered_json> (*answer)(const StoreCommands& commands, Fields& fields);
};
constexpr Route kRoutes[] = {{"/store/lookup", Lookup},   {"/store/prefetch", Prefetch},
                             {"/store/pin", Pin},         {"/store/unpin", Unpin},
                             {"/store/clear", Clear},     {"/store/list", List},
                             {"/store/tenants", Tenants}, {"/store/quota", Quota}};

// Null for an unknown path.
const Route* FindRoute(absl::string_view path) {
  const auto* const route = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                         [&](const Route& one) { return one.path == path; });
  return route == std::end(kRoutes) ? nullptr : route;
}

}  // namespace

std::optional<HttpResponse> StoreApi::CheckHead(const HttpRequest& head) const {
  if (!HasToken(head.Header("authorization"), options_.token_sha256)) {
    return Refuse(401, "want \"Authorization: Bearer TOKEN\" with the token of store.control_token_sha256");
  }
  if (FindRoute(head.path) == nullptr) return Refuse(404, "no such path");
  if (head.method != "POST") {
    HttpResponse response = Refuse(405, "want POST");
    response.headers.push_back({"Allow", "POST"});
    return response;
  }
  return std::nullopt;
}

std::optional<HttpResponse> StoreApi::Answer(const HttpRequest& request) const {
  if (!absl::StartsWith(request.path, kPath)) return std::nullopt;
  if (auto refused = CheckHead(request)) return refused;
  absl::StatusOr<ordered_json> body = ParseBody(request.body);
  if (body.ok()) {
    const ordered_json asked = *std::move(body);
    Fields fields(asked);
    body = FindRoute(request.path)->answer(options_.commands, fields);
  }
  return body.ok() ? Json(200, *body) : Refuse(body.status());
}

}  // namespace aludel
