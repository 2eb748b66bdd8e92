#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/observe/metrics.h"

struct mg_context;

namespace aludel {

// The operator's HTTP port of a server without another one: GET /metrics, GET /health (the process lives and
// its engine is not wedged) and GET /ready (it takes work); 200, or 503 with the reason as text. civetweb
// serves it: prometheus-cpp stands on it already, and its Exposer could serve /metrics alone. Owns civetweb's
// threads; the callbacks come from them and must not block.
class AdminServer {
 public:
  struct Checks {
    std::function<absl::Status()> health;
    std::function<absl::Status()> ready;
  };

  // `listen` is host:port; Unavailable where the port is taken. `metrics` must outlive the server.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const std::string& listen, Metrics* metrics,
                                                            Checks checks);
  // Waits for answers in progress; takes up to two seconds, which is how often civetweb looks.
  ~AdminServer();

  int port() const;

 private:
  explicit AdminServer(Checks checks) : checks_(std::move(checks)) {}

  Checks checks_;
  mg_context* context_ = nullptr;
};

}  // namespace aludel
