#include "server/prefill/store_api.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"
#include "server/rpc/cache_salt.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxListed = 1000;
constexpr int64_t kMaxPinSeconds = 7 * 24 * 3600;
constexpr size_t kMaxTokens = 1 << 20;
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

absl::StatusOr<std::string> Text(const ordered_json& body, const char* name) {
  const auto found = body.find(name);
  if (found == body.end()) return "";
  if (!found->is_string()) return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a string"));
  return found->get<std::string>();
}

absl::StatusOr<int64_t> Number(const ordered_json& body, const char* name, int64_t otherwise, int64_t min,
                               int64_t max) {
  const auto found = body.find(name);
  if (found == body.end()) return otherwise;
  const bool fits = found->is_number_integer() &&
                    (!found->is_number_unsigned() || found->get<uint64_t>() <= static_cast<uint64_t>(max)) &&
                    found->get<int64_t>() >= min && found->get<int64_t>() <= max;
  if (!fits)
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a number of ", min, " to ", max));
  return found->get<int64_t>();
}

absl::StatusOr<std::vector<int32_t>> Tokens(const ordered_json& body) {
  const auto found = body.find("tokens");
  if (found == body.end() || !found->is_array() || found->empty() || found->size() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("'tokens' is not a list of 1 to ", kMaxTokens, " token ids"));
  }
  std::vector<int32_t> tokens;
  for (const ordered_json& token : *found) {
    if (!token.is_number_integer() || token.get<int64_t>() < 0 || token.get<int64_t>() > INT32_MAX) {
      return absl::InvalidArgumentError("'tokens' has one that is not a token id");
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

std::string Hex(TenantTag tenant) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(&tenant), sizeof(tenant)});
}

template <size_t kBytes>
std::string Hex(const std::array<uint8_t, kBytes>& bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), kBytes});
}

// Of "tenant", as the reports name it, or "key" with or without "cache_salt"; the latter gives a salt, too.
struct Whose {
  std::optional<TenantTag> tenant;
  std::optional<std::string> salt;
};
absl::StatusOr<Whose> ReadWhose(const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string tenant, Text(body, "tenant"));
  ALUDEL_ASSIGN_OR_RETURN(const std::string key, Text(body, "key"));
  ALUDEL_ASSIGN_OR_RETURN(const std::string cache_salt, Text(body, "cache_salt"));
  Whose whose;
  if (body.contains("tenant")) {
    const bool digits =
        std::all_of(tenant.begin(), tenant.end(), [](unsigned char c) { return std::isxdigit(c); });
    if (tenant.size() != 2 * sizeof(TenantTag) || !digits || body.contains("key") ||
        body.contains("cache_salt")) {
      return absl::InvalidArgumentError(
          "'tenant' is 16 hexadecimal digits, and stands without 'key' and 'cache_salt'");
    }
    TenantTag tag = 0;
    std::memcpy(&tag, absl::HexStringToBytes(tenant).data(), sizeof(tag));
    whose.tenant = tag;
  } else if (body.contains("key") || body.contains("cache_salt")) {
    const std::string salt = MakeCacheSalt(key, cache_salt);
    whose.tenant = TenantOf(SaltTag(salt));
    if (body.contains("cache_salt")) whose.salt = salt;
  }
  return whose;
}

// A prompt's start and its tokens.
struct Prompt {
  StorePosition begin;
  std::vector<int32_t> tokens;
};
absl::StatusOr<Prompt> ReadPrompt(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string format, Text(body, "format"));
  const CodecSpec* const codec = options.find_format(format);
  if (codec == nullptr) return absl::InvalidArgumentError("'format' is not a format of this server");
  if (body.contains("tenant"))
    return absl::InvalidArgumentError("'tenant' names no salt: want 'key' or 'cache_salt'");
  ALUDEL_ASSIGN_OR_RETURN(const std::string key, Text(body, "key"));
  ALUDEL_ASSIGN_OR_RETURN(const std::string cache_salt, Text(body, "cache_salt"));
  Prompt prompt{.begin = options.store->Begin(*codec, MakeCacheSalt(key, cache_salt))};
  ALUDEL_ASSIGN_OR_RETURN(prompt.tokens, Tokens(body));
  return prompt;
}

absl::StatusOr<ordered_json> Lookup(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(options, body));
  StorePosition at = prompt.begin;
  int64_t in_memory = 0;
  ordered_json keys = ordered_json::array();
  for (const StoredChunk& chunk : options.store->Peek(prompt.tokens, &at)) {
    if (chunk.frames != nullptr) in_memory += chunk.end.tokens - chunk.token_begin;
    keys.push_back(Hex(chunk.end.key));
  }
  return ordered_json{{"tokens", at.tokens}, {"memory_tokens", in_memory}, {"chunks", std::move(keys)}};
}

absl::StatusOr<ordered_json> Prefetch(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(options, body));
  return ordered_json{{"loading_tokens", options.store->Prefetch(prompt.tokens, prompt.begin)}};
}

absl::StatusOr<ordered_json> Pin(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(options, body));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t ttl, Number(body, "ttl_s", 3600, 1, kMaxPinSeconds));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t tokens,
                          options.store->Pin(prompt.tokens, prompt.begin, absl::Seconds(ttl)));
  return ordered_json{{"tokens", tokens}};
}

absl::StatusOr<ordered_json> Unpin(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(options, body));
  return ordered_json{{"tokens", options.store->Unpin(prompt.tokens, prompt.begin)}};
}

absl::StatusOr<StoreFilter> ReadFilter(const StoreApi::Options& options, const ordered_json& body) {
  StoreFilter filter;
  if (body.contains("tokens")) {
    ALUDEL_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(options, body));
    StorePosition at = prompt.begin;
    if (options.store->Peek(prompt.tokens, &at).empty())
      return absl::InvalidArgumentError("nothing of it is stored");
    filter.from = at.key;
    filter.salt = at.salt;
    filter.encoder = at.encoder;
    return filter;
  }
  ALUDEL_ASSIGN_OR_RETURN(const Whose whose, ReadWhose(body));
  filter.tenant = whose.tenant;
  if (whose.salt) filter.salt = SaltTag(*whose.salt);
  ALUDEL_ASSIGN_OR_RETURN(const std::string format, Text(body, "format"));
  if (body.contains("format")) {
    const CodecSpec* const codec = format.empty() ? nullptr : options.find_format(format);
    if (codec == nullptr) return absl::InvalidArgumentError("'format' is not a format of this server");
    filter.encoder = EncoderTag(*codec);
  }
  return filter;
}

absl::StatusOr<ordered_json> Clear(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const StoreFilter filter, ReadFilter(options, body));
  const bool all = body.contains("all") && body["all"] == true;
  if (all == (filter.tenant || filter.encoder)) {
    return absl::InvalidArgumentError(
        "want \"all\": true, or one of 'key', 'cache_salt', 'tenant', 'format' and 'tokens'");
  }
  absl::Notification ended;
  absl::Status cleared;
  const auto done = [&](const absl::Status& status) {
    cleared = status;
    ended.Notify();
  };
  ordered_json answer = {{"status", "cleared"}};
  if (all) {
    options.store->Clear(done);
  } else {
    answer["chunks"] = options.store->ClearSome(filter, done);
  }
  ended.WaitForNotification();
  if (!cleared.ok()) {
    return absl::UnavailableError(
        absl::StrCat("found no more, but may be after a restart: ", cleared.message()));
  }
  return answer;
}

absl::StatusOr<ordered_json> List(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const StoreFilter filter, ReadFilter(options, body));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t limit, Number(body, "limit", 100, 1, kMaxListed));
  if (filter.from) return absl::InvalidArgumentError("'tokens' is not served here: see /store/lookup");
  ordered_json chunks = ordered_json::array();
  for (const StoredChunkReport& chunk : options.store->List(filter, static_cast<size_t>(limit))) {
    chunks.push_back({{"key", Hex(chunk.key)},
                      {"tenant", Hex(TenantOf(chunk.salt))},
                      {"token_begin", chunk.token_begin},
                      {"tokens", chunk.tokens},
                      {"memory_bytes", chunk.memory_bytes},
                      {"disk_bytes", chunk.disk_bytes},
                      {"pinned_s", absl::ToInt64Seconds(chunk.pinned)}});
  }
  return ordered_json{{"chunks", std::move(chunks)}};
}

// 0 is no quota, as in the configuration.
template <typename Bytes>
ordered_json QuotaJson(Bytes quota) {
  return quota == std::numeric_limits<Bytes>::max() ? Bytes{0} : quota;
}

absl::StatusOr<ordered_json> Tenants(const StoreApi::Options& options, const ordered_json&) {
  ordered_json tenants = ordered_json::array();
  for (const TenantReport& tenant : options.store->Tenants()) {
    tenants.push_back({{"tenant", Hex(tenant.tenant)},
                       {"memory_bytes", tenant.memory_bytes},
                       {"memory_chunks", tenant.memory_chunks},
                       {"disk_bytes", tenant.disk_bytes},
                       {"disk_chunks", tenant.disk_chunks},
                       {"quota",
                        {{"memory_bytes", QuotaJson(tenant.quota.memory_bytes)},
                         {"disk_bytes", QuotaJson(tenant.quota.disk_bytes)}}}});
  }
  return ordered_json{{"tenants", std::move(tenants)}};
}

absl::StatusOr<ordered_json> Quota(const StoreApi::Options& options, const ordered_json& body) {
  ALUDEL_ASSIGN_OR_RETURN(const Whose whose, ReadWhose(body));
  if (!whose.tenant || whose.salt) return absl::InvalidArgumentError("want 'key' or 'tenant'");
  constexpr int64_t kMax = int64_t{1} << 50;
  ALUDEL_ASSIGN_OR_RETURN(const int64_t memory, Number(body, "memory_bytes", 0, 0, kMax));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t disk, Number(body, "disk_bytes", 0, 0, kMax));
  const TenantShares::Quota none;
  QuotaChange change;
  if (body.contains("memory_bytes"))
    change.memory_bytes = memory > 0 ? static_cast<size_t>(memory) : none.memory_bytes;
  if (body.contains("disk_bytes"))
    change.disk_bytes = disk > 0 ? static_cast<uint64_t>(disk) : none.disk_bytes;
  if (!change.memory_bytes && !change.disk_bytes)
    return absl::InvalidArgumentError("want 'memory_bytes' or 'disk_bytes'");
  ALUDEL_RETURN_IF_ERROR(options.store->SetQuota(*whose.tenant, change));
  return ordered_json{{"tenant", Hex(*whose.tenant)}};
}

struct Route {
  absl::string_view path;
  absl::StatusOr<ordered_json> (*answer)(const StoreApi::Options& options, const ordered_json& body);
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
  absl::string_view token = head.Header("authorization");
  std::array<uint8_t, 32> hash = {};
  const bool bearer = absl::ConsumePrefix(&token, "Bearer ");
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), hash.data());
  if (!bearer || CRYPTO_memcmp(hash.data(), options_.token_sha256.data(), hash.size()) != 0) {
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
  if (body.ok()) body = FindRoute(request.path)->answer(options_, *body);
  return body.ok() ? Json(200, *body) : Refuse(body.status());
}

absl::StatusOr<std::array<uint8_t, 32>> ParseSha256(absl::string_view hex) {
  std::array<uint8_t, 32> hash;
  const bool digits = std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return std::isxdigit(c); });
  if (hex.size() != 2 * hash.size() || !digits)
    return absl::InvalidArgumentError("want 64 hexadecimal digits");
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

}  // namespace aludel
