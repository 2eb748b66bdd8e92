#include "server/gateway/routes.h"

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
    {.path = "/tokenize", .method = "POST", .metered = true},
    {.path = "/detokenize", .method = "POST", .metered = true},
    {.path = "/health", .method = "GET", .open = true, .quiet = true, .at_once = true},
    {.path = "/ready", .method = "GET", .open = true, .quiet = true, .at_once = true},
    {.path = "/version", .method = "GET", .open = true, .at_once = true},
    {.path = "/metrics", .method = "GET", .open = true, .quiet = true},
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
