#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/gateway/access/access.h"
#include "server/gateway/access/cors.h"
#include "server/gateway/access/request_journal.h"
#include "server/gateway/arrival.h"
#include "server/gateway/local_answers.h"
#include "server/gateway/openai/completions.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/readiness.h"
#include "server/gateway/responses/response_store.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_server.h"
#include "server/observe/metrics.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/watchdog.h"
#include "server/pool/work_pool.h"
#include "server/process/work_clock.h"

namespace aludel {

// Every HTTP path of aludel-gateway. Each request, refused ones too, gets an id and a place in a trace, is
// checked for its key, and leaves one log line. Thread-safe; everything it is given must outlive it and
// its requests.
class Gateway {
 public:
  struct Options {
    Completions::Options completions;
    std::vector<std::string> cors_allowed_origins;
    bool serves_admin = true;          // the operator's paths: no other port has them
    double trace_share = 0;            // of requests that bring no traceparent
    ResponseStore::Options responses;  // what is kept of the answers of /v1/responses
    // Of the process; not OK: neither healthy nor ready. May be null.
    std::function<absl::Status()> health;
  };
  // `traces` may be null.
  Gateway(Options options, Access* access, const ServedModels* models, Router* router, Metrics* metrics,
          OtlpExporter* traces = nullptr);

  // Waits for requests to end: cancel them first (HttpServer::Shutdown does).
  ~Gateway();

  // Sets the callbacks of a server whose requests come here, and returns its handler; they must not outlive this.
  HttpServer::Handler Bind(HttpServerOptions* options);
  // Such a server.
  absl::StatusOr<std::unique_ptr<HttpServer>> Listen(HttpServerOptions options);

  // The rule of /ready; see Readiness.
  absl::Status CheckReady(absl::string_view model = {}) const { return readiness_.Check(model); }
  // Threads that its requests run on, beside the HTTP server's own.
  std::vector<Watchdog::Check> Checks() const;
  // As the admin port answers them; see OperatorApi.
  std::optional<HttpResponse> AnswerAdmin(const HttpRequest& request) const {
    return local_.AnswerAdmin(request);
  }
  // Not ready from now on, so that load balancers look elsewhere. Requests are served as before.
  void Drain() { readiness_.Drain(); }

 private:
  // HttpServer's three callbacks. Before a body: it is read only where the key is good and the route
  // takes one.
  std::optional<HttpResponse> CheckHead(const HttpRequest& request);
  // Refusals of the HTTP layer, in OpenAI's shape.
  HttpResponse Refuse(const HttpRequest& request, const HttpError& refused);
  void Handle(HttpRequest request, HttpResponder responder);

  // What Handle comes to: text of a model, an answer from the work pool, or one made at once.
  void Complete(HttpRequest request, const Arrival& arrival, std::shared_ptr<Access::Grant> grant,
                HttpResponder responder);
  void AnswerOnPool(HttpRequest request, const Arrival& arrival, std::shared_ptr<Access::Grant> grant,
                    HttpResponder responder);

  const Options options_;
  const Cors cors_;
  Access* const access_;
  Router* const router_;
  const CounterFamily refusals_;  // before any work, by the error's code
  RequestJournal journal_;
  WorkClock handling_;  // on the HTTP server's handler threads
  WorkPool heavy_;      // large bodies
  Readiness readiness_;
  ResponseStore responses_;
  const LocalAnswers local_;
  Completions completions_;
};

}  // namespace aludel
