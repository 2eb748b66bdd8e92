#include "server/gateway/access/cors.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace aludel {
namespace {

// Browsers hide every other header of an answer from the page.
constexpr char kExposed[] =
    "x-request-id, request-id, traceparent, x-aludel-plan, x-aludel-format, x-aludel-payload-bytes, "
    "x-aludel-cached-tokens, "
    "Server-Timing, Retry-After, WWW-Authenticate, Allow, Date";
// Far above what a client sends of its own (the official one, 300 bytes); beyond it no header is allowed.
constexpr size_t kMaxRequestHeaders = 2048;

// A token of RFC 9110, 5.6.2: what a header may be called.
bool IsToken(absl::string_view name) {
  return !name.empty() && absl::c_all_of(name, [](char c) {
    return absl::ascii_isalnum(c) || absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
  });
}

// The names in a preflight's Access-Control-Request-Headers. Which headers a page sends is its own affair:
// clients bring a dozen that we never read (X-Stainless-*), and without cookies none says more than the
// page may.
std::string RequestedHeaders(const HttpRequest& request) {
  const absl::string_view asked = request.Header("access-control-request-headers");
  if (asked.size() > kMaxRequestHeaders) return {};
  std::vector<absl::string_view> names = absl::StrSplit(asked, ',');
  for (absl::string_view& name : names) name = absl::StripAsciiWhitespace(name);
  names.erase(
      std::remove_if(names.begin(), names.end(), [](absl::string_view name) { return !IsToken(name); }),
      names.end());
  return absl::StrJoin(names, ", ");
}

}  // namespace

std::vector<HttpHeader> Cors::HeadersFor(const HttpRequest& request) const {
  if (origins_.empty()) return {};
  const bool preflight = IsPreflight(request);
  std::vector<HttpHeader> headers = {
      {"Vary", preflight ? "Origin, Access-Control-Request-Headers" : "Origin"}};
  const absl::string_view origin = request.Header("origin");
  const bool any = absl::c_linear_search(origins_, "*");
  if (origin.empty() || (!any && !absl::c_linear_search(origins_, origin))) return headers;
  headers.push_back({"Access-Control-Allow-Origin", any ? "*" : std::string(origin)});
  headers.push_back({"Access-Control-Expose-Headers", kExposed});
  if (!preflight) return headers;
  headers.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS"});
  headers.push_back({"Access-Control-Max-Age", "600"});
  if (std::string names = RequestedHeaders(request); !names.empty()) {
    headers.push_back({"Access-Control-Allow-Headers", std::move(names)});
  }
  return headers;
}

bool Cors::IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.Header("origin").empty() &&
         !request.Header("access-control-request-method").empty();
}

}  // namespace aludel
