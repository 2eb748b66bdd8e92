#pragma once

#include <optional>

#include "server/gateway/openai/api_error.h"
#include "server/gateway/routes.h"
#include "server/http/http_message.h"

namespace aludel {

// What a gateway says to a request that no route of its own takes.
HttpResponse NoSuchPath(const HttpRequest& request);
HttpResponse WrongMethod(const HttpRequest& request, const Route& route);
// Of a route that is not for this key.
ApiError NoAdmin();
// Before a body: nothing where that is worth reading. `route` null: none of ours.
std::optional<HttpResponse> RefuseBody(const HttpRequest& request, bool preflight, const Route* route);

}  // namespace aludel
