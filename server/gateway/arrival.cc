#include "server/gateway/arrival.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/anthropic/anthropic_error.h"
#include "server/gateway/route_refusals.h"
#include "server/observe/trace_context.h"
#include "server/rpc/rpc_fields.h"

namespace aludel {
namespace {

// The client's own id where it is fit for logs and headers, else a new one.
std::string RequestId(const HttpRequest& request) {
  const absl::string_view id = request.Header("x-request-id");
  if (!id.empty() && CheckRequestId(id).ok()) return std::string(id);
  thread_local absl::BitGen random;
  return absl::StrCat("req-", absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

// The operation that this request is: a part of the client's trace, or the root of one.
void PlaceInTrace(const HttpRequest& request, double share, RequestIdentity* identity) {
  const std::optional<TraceContext> parent = TraceContext::Parse(request.Header(kTraceparent));
  identity->trace = parent ? parent->NewChild() : TraceContext::NewTrace(share);
  if (parent) identity->parent_span = parent->span_id;
}

// As OpenAI's clients send it, or as Anthropic's do.
std::string Authorization(const HttpRequest& request) {
  const absl::string_view authorization = request.Header("authorization");
  const absl::string_view key = request.Header("x-api-key");
  return authorization.empty() && !key.empty() ? absl::StrCat("Bearer ", key) : std::string(authorization);
}

}  // namespace

Arrival Receive(const HttpRequest& request, const Cors& cors, bool serves_admin, double trace_share) {
  Arrival arrival;
  arrival.route = FindRoute(request.path);
  if (arrival.route != nullptr && arrival.route->admin && !serves_admin) arrival.route = nullptr;
  arrival.preflight = Cors::IsPreflight(request);
  RequestIdentity& identity = arrival.identity;
  identity.id = RequestId(request);
  identity.peer = request.peer;
  identity.method = request.method;
  identity.path = request.path;
  identity.route = std::string(arrival.route == nullptr ? "other" : arrival.route->path);
  PlaceInTrace(request, trace_share, &identity);
  arrival.headers = cors.HeadersFor(request);
  arrival.headers.push_back({"x-request-id", identity.id});
  if (arrival.route != nullptr && arrival.route->anthropic) {
    arrival.headers.push_back({"request-id", identity.id});
  }
  arrival.headers.push_back({kTraceparent, identity.trace.ToTraceparent()});
  return arrival;
}

std::optional<ApiError> CheckKey(const Access& access, const HttpRequest& request, Arrival* arrival) {
  if (arrival->preflight || (arrival->route != nullptr && arrival->route->open)) return std::nullopt;
  return access.Identify(Authorization(request), &arrival->identity.client);
}

std::optional<ApiError> Admit(const Arrival& arrival, Access* access, std::shared_ptr<Access::Grant>* grant) {
  const Route& route = *arrival.route;
  if (!route.metered) return std::nullopt;
  const std::string& client = arrival.identity.client;
  if (auto refusal = access->Admit(client, grant)) return refusal;
  // What needs an administrator; where there are no keys, all clients may what is the operator's anyway.
  if (route.manages && !(*grant)->limits().admin && !(route.admin && client.empty())) return NoAdmin();
  return std::nullopt;
}

HttpResponse InShapeOf(const Route* route, const RequestIdentity& identity, HttpResponse response) {
  if (route != nullptr && route->anthropic && !response.error.empty()) {
    response.body = Dump(AnthropicErrorJson(response.status, response.error, identity.id));
  }
  return response;
}

}  // namespace aludel
