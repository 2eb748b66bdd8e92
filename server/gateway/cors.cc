#include "server/gateway/cors.h"

#include "absl/algorithm/container.h"

namespace aludel {

std::vector<HttpHeader> Cors::HeadersFor(const HttpRequest& request) const {
  const absl::string_view origin = request.Header("origin");
  if (origin.empty() || origins_.empty()) return {};
  const bool any = absl::c_linear_search(origins_, "*");
  if (!any && !absl::c_linear_search(origins_, origin)) return {};
  std::vector<HttpHeader> headers = {
      {"Access-Control-Allow-Origin", any ? "*" : std::string(origin)},
      {"Access-Control-Expose-Headers",
       "x-request-id, traceparent, x-aludel-plan, x-aludel-format, x-aludel-payload-bytes, Server-Timing, "
       "Retry-After"}};
  if (!any) headers.push_back({"Vary", "Origin"});
  return headers;
}

bool Cors::IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.Header("origin").empty() &&
         !request.Header("access-control-request-method").empty();
}

std::vector<HttpHeader> Cors::PreflightHeaders() {
  return {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
          {"Access-Control-Allow-Headers",
           "Authorization, Content-Type, x-request-id, traceparent, tracestate, OpenAI-Organization, "
           "OpenAI-Project"},
          {"Access-Control-Max-Age", "600"}};
}

}  // namespace aludel
