#pragma once

#include <string>
#include <vector>

#include "server/gateway/access/cors.h"
#include "server/gateway/access/request_record.h"
#include "server/gateway/routes.h"
#include "server/http/http_message.h"

namespace aludel {

// A request as its head shows it.
struct Arrival {
  const Route* route = nullptr;  // null: none of ours
  bool preflight = false;
  RequestIdentity identity;         // but for the client
  std::vector<HttpHeader> headers;  // of its answer, whatever that is
};

// `serves_admin`: the operator's paths are there. `trace_share`: of requests that bring no traceparent, how many are traced.
Arrival Receive(const HttpRequest& request, const Cors& cors, bool serves_admin, double trace_share);

// What it has for a key, in the form of an Authorization header: as OpenAI's clients send it, or as Anthropic's do.
std::string AuthorizationOf(const HttpRequest& request);

// An error that was written in OpenAI's shape, in that of its route; null: none of ours.
HttpResponse InShapeOf(const Route* route, const RequestIdentity& identity, HttpResponse response);

}  // namespace aludel
