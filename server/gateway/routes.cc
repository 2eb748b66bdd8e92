#include "server/gateway/routes.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace aludel {
namespace {

constexpr Route kRoutes[] = {
    {.path = "/", .method = "GET", .open = true},
    {.path = "/v1/chat/completions", .method = "POST", .metered = true, .completion = true},
    {.path = "/v1/completions", .method = "POST", .metered = true, .completion = true},
    {.path = "/v1/messages", .method = "POST", .metered = true, .completion = true, .anthropic = true},
    {.path = "/v1/messages/count_tokens", .method = "POST", .metered = true, .anthropic = true},
    {.path = "/v1/responses", .method = "POST", .metered = true, .completion = true},
    {.path = "/v1/responses/*", .method = "GET", .metered = true, .deletes = true},
    {.path = "/v1/models", .method = "GET"},
    {.path = "/v1/models/*", .method = "GET"},
    {.path = "/v1/load_lora_adapter", .method = "POST", .metered = true, .manages = true},
    {.path = "/v1/unload_lora_adapter", .method = "POST", .metered = true, .manages = true},
    {.path = "/tokenize", .method = "POST", .metered = true},
    {.path = "/detokenize", .method = "POST", .metered = true},
    {.path = "/health", .method = "GET", .open = true, .quiet = true, .at_once = true},
    {.path = "/ready", .method = "GET", .open = true, .quiet = true, .at_once = true},
    {.path = "/version", .method = "GET", .open = true, .at_once = true},
    {.path = "/openapi.json", .method = "GET", .open = true},
    {.path = "/docs", .method = "GET", .open = true},
    {.path = "/metrics", .method = "GET", .open = true, .quiet = true, .admin = true},
    {.path = "/load", .method = "GET", .admin = true},
    {.path = "/server_info", .method = "GET", .admin = true},
    {.path = "/reset_prefix_cache",
     .method = "POST",
     .metered = true,
     .admin = true,
     .manages = true,
     .bare = true},
    {.path = "/admin/routing", .method = "GET", .metered = true, .admin = true, .manages = true},
};

constexpr std::pair<absl::string_view, absl::string_view> kNotServed[] = {
    {"/v1/embeddings", "and none of them makes embeddings: ask a server of an embedding model"},
    {"/v1/moderations", "and none of them moderates"},
    {"/v1/images", "and none of them makes images"},
    {"/v1/audio", "and none of them hears or speaks"},
    {"/v1/files", "and nothing is kept for later"},
    {"/v1/batches", "and nothing is kept for later: send requests as they come, they wait in a queue"},
    {"/v1/fine_tuning", "and are fine-tuned elsewhere"},
    {"/v1/assistants", "and nothing is kept for later"},
    {"/v1/threads", "and nothing is kept for later"},
    {"/api", "and speak OpenAI's and Anthropic's APIs, below /v1; Ollama's own is not served"},
};

}  // namespace

bool Route::Takes(absl::string_view asked) const {
  return asked == method || (asked == "HEAD" && method == "GET") || (asked == "DELETE" && deletes);
}

std::string Route::Allow() const {
  return absl::StrCat(method, method == "GET" ? ", HEAD" : "", deletes ? ", DELETE" : "");
}

std::string CanonicalPath(absl::string_view path) {
  std::string canonical;
  for (const char c : path) {
    if (c != '/' || canonical.empty() || canonical.back() != '/') canonical += c;
  }
  if (canonical.size() > 1 && canonical.back() == '/') canonical.pop_back();
  return canonical;
}

absl::Span<const Route> Routes() { return kRoutes; }

absl::string_view WhyNotServed(absl::string_view path) {
  const std::string canonical = CanonicalPath(path);
  for (const auto& [prefix, why] : kNotServed) {
    if (canonical == prefix || absl::StartsWith(canonical, absl::StrCat(prefix, "/"))) return why;
  }
  return "";
}

const Route* FindRoute(absl::string_view asked) {
  const std::string path = CanonicalPath(asked);
  for (const Route& route : kRoutes) {
    absl::string_view prefix = route.path;
    if (absl::ConsumeSuffix(&prefix, "*") ? absl::StartsWith(path, prefix) && path.size() > prefix.size()
                                          : path == prefix) {
      return &route;
    }
  }
  return nullptr;
}

}  // namespace aludel
