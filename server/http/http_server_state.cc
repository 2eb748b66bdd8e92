#include "server/http/http_server_state.h"

#include <boost/asio/post.hpp>

#include "absl/strings/str_cat.h"
#include "server/http/http_exchange.h"

namespace aludel {

HttpResponse HttpServerState::Refusal(const HttpRequest& request, const HttpError& error) const {
  if (options.refuse) return options.refuse(request, error);
  HttpResponse response;
  response.status = error.status;
  response.content_type = "text/plain";
  response.body = error.message + "\n";
  if (error.retry_after_seconds > 0) {
    response.headers.push_back({"Retry-After", absl::StrCat(error.retry_after_seconds)});
  }
  return response;
}

void HttpServerState::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (options.at_once && options.at_once(request)) {
    return handler(std::move(request), HttpResponder(std::move(exchange)));
  }
  if (queued_requests.fetch_add(1) >= options.max_queued_requests) {
    queued_requests.fetch_sub(1);
    return exchange->Respond(Refusal(request, {503, "too many requests wait for a handler", 1}), nullptr);
  }
  boost::asio::post(*handler_pool, [state = shared_from_this(), request = std::move(request),
                                    exchange = std::move(exchange)]() mutable {
    state->queued_requests.fetch_sub(1);
    state->handler(std::move(request), HttpResponder(std::move(exchange)));
  });
}

}  // namespace aludel
