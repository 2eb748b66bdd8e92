#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/http/http_body_budget.h"
#include "server/http/http_server.h"

namespace aludel {

class HttpConnection;

// One I/O thread and what only it touches.
struct HttpLoop {
  boost::asio::io_context context{1};
  // Owns them, from Start() to Close(). Everything else that knows a connection holds it weakly, or for
  // one call.
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  std::vector<char> scratch = std::vector<char>(64 << 10);  // every read passes through here
  bool draining = false;
  std::thread thread;
};

// What connections share; outlives all of them.
struct HttpServerState : std::enable_shared_from_this<HttpServerState> {
  HttpServerState(HttpServerOptions options, HttpServer::Handler handler)
      : options(std::move(options)),
        handler(std::move(handler)),
        body_budget(this->options.max_total_body_bytes) {}

  // By options.refuse, or as plain text.
  HttpResponse Refusal(const HttpRequest& request, const HttpError& error) const;
  // On a handler thread, or here and now where options.at_once says so; a refusal where too many wait.
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  HttpBodyBudget body_budget;
  std::vector<std::unique_ptr<HttpLoop>> loops;
  std::unique_ptr<boost::asio::thread_pool> handler_pool;
  std::atomic<int> open_connections{0};
  std::atomic<int> queued_requests{0};
};

}  // namespace aludel
