#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/gateway/access/access.h"
#include "server/gateway/access/cors.h"
#include "server/gateway/access/request_record.h"
#include "server/gateway/openai/api_error.h"
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

// `serves_admin`: the operator's paths are there. `trace_share`: of requests that bring no traceparent, how many
// are traced.
Arrival Receive(const HttpRequest& request, const Cors& cors, bool serves_admin, double trace_share);

// Says whose request it is; an error where it needs a key and has none.
std::optional<ApiError> CheckKey(const Access& access, const HttpRequest& request, Arrival* arrival);
// Takes a place among its client's requests for one that has a route; an error where the client's limits or its key are
// against that.
std::optional<ApiError> Admit(const Arrival& arrival, Access* access, std::shared_ptr<Access::Grant>* grant);

// An error that was written in OpenAI's shape, in that of its route; null: none of ours.
HttpResponse InShapeOf(const Route* route, const RequestIdentity& identity, HttpResponse response);

}  // namespace aludel
