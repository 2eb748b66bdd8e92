#pragma once

#include <atomic>
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
#include "server/gateway/access/request_record.h"
#include "server/gateway/openai/completions.h"
#include "server/gateway/openai/served_models.h"
#include "server/gateway/responses/response_store.h"
#include "server/gateway/routes.h"
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

  // OK as soon as one model can be served, or where `model` names one, when that can; else Unavailable with
  // the reasons. The rule of /ready.
  absl::Status CheckReady(absl::string_view model = {}) const;
  // Threads that its requests run on, beside the HTTP server's own.
  std::vector<Watchdog::Check> Checks() const;
  // /load, /server_info, /admin/routing and /reset_prefix_cache, as the admin port answers them; nothing for other paths.
  std::optional<HttpResponse> AnswerAdmin(const HttpRequest& request) const;
  // Not ready from now on, so that load balancers look elsewhere. Requests are served as before.
  void Drain() { draining_ = true; }

 private:
  // A request as its head shows it.
  struct Arrival {
    const Route* route = nullptr;  // null: none of ours
    bool preflight = false;
    RequestIdentity identity;
    std::vector<HttpHeader> headers;  // of its answer, whatever that is
  };
  Arrival Receive(const HttpRequest& request) const;
  // Says whose request it is; an error where it needs a key and has none.
  std::optional<ApiError> CheckKey(const HttpRequest& request, Arrival* arrival) const;

  // HttpServer's three callbacks. Before a body: it is read only where the key is good and the route
  // takes one.
  std::optional<HttpResponse> CheckHead(const HttpRequest& request);
  // Refusals of the HTTP layer, in OpenAI's shape.
  HttpResponse Refuse(const HttpRequest& request, const HttpError& refused);
  void Handle(HttpRequest request, HttpResponder responder);

  // The same as Handle's last steps, on the work pool.
  void AnswerOnPool(HttpRequest request, const Route& route, const RequestIdentity& identity,
                    std::shared_ptr<Access::Grant> grant, HttpResponder responder);
  std::unique_ptr<Dialect> MakeDialect(const Route& route, const RequestIdentity& identity);
  // An answer made at once.
  HttpResponse Answer(const HttpRequest& request, const Route& asked, const RequestIdentity& identity);
  HttpResponse Models() const;
  HttpResponse Model(absl::string_view id) const;
  // The process answers, and its threads move.
  HttpResponse Health() const;
  HttpResponse Ready(const HttpRequest& request) const;
  HttpResponse Load() const;
  HttpResponse ServerInfo() const;
  // Waits for the decode servers.
  HttpResponse ResetCache() const;
  HttpResponse Routing(absl::string_view query) const;

  const Options options_;
  const Cors cors_;
  Access* const access_;
  const ServedModels* const models_;
  Router* const router_;
  Metrics* const metrics_;
  const CounterFamily refusals_;  // before any work, by the error's code
  RequestJournal journal_;
  WorkClock handling_;  // on the HTTP server's handler threads
  WorkPool heavy_;      // large bodies
  ResponseStore responses_;
  Completions completions_;
  std::atomic<bool> draining_{false};
};

}  // namespace aludel
