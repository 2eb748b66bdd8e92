#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/http_server.h"
#include "server/observe/metrics.h"

namespace aludel {

// The operator's HTTP port of a server: GET /metrics, GET /health (the process lives and its engine is not
// wedged) and GET /ready (it takes work); 200, or 503 with the reason as text. Owns the server's threads; the
// callbacks come from them and must not block.
class AdminServer {
 public:
  struct Checks {
    std::function<absl::Status()> health;
    std::function<absl::Status()> ready;
    // Paths below more_path; nothing for one that is not there. What a POST asks for may take some seconds. May be null.
    std::function<std::optional<HttpResponse>(const HttpRequest&)> more = nullptr;
    std::string more_path = "";
    // Of a request below more_path whose body has not been read: an answer ends it there. May be null.
    std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head = nullptr;
    size_t max_body_bytes = 0;  // of a request
  };

  // `listen` is host:port; Unavailable where the port is taken. `metrics` must outlive the server.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const std::string& listen, Metrics* metrics,
                                                            Checks checks);

  int port() const { return server_->port(); }

 private:
  AdminServer(Metrics* metrics, Checks checks) : metrics_(metrics), checks_(std::move(checks)) {}

  bool IsMore(const HttpRequest& request) const;
  // The answer to one that is refused for its head.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) const;
  HttpResponse Answer(const HttpRequest& request) const;

  Metrics* const metrics_;
  const Checks checks_;
  std::unique_ptr<HttpServer> server_;  // last: its threads use what stands above
};

}  // namespace aludel
