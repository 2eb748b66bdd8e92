#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "server/gateway/access.h"
#include "server/gateway/completions.h"
#include "server/gateway/cors.h"
#include "server/gateway/http_server.h"
#include "server/gateway/request_record.h"
#include "server/gateway/router.h"
#include "server/gateway/served_models.h"
#include "server/metrics.h"
#include "server/otlp_exporter.h"

namespace aludel {

// Every HTTP path of aludel-gateway; Handle is HttpServer's handler. Each request gets an id and a place in a
// trace, is checked for its key, and leaves one log line. Thread-safe; everything it is given must outlive it
// and its requests.
class Gateway {
 public:
  struct Options {
    Completions::Options completions;
    std::vector<std::string> cors_allowed_origins;
    bool serves_metrics = true;  // GET /metrics
    double trace_share = 0;      // of requests that bring no traceparent
  };
  // `traces` may be null.
  Gateway(Options options, Access* access, const ServedModels* models, Router* router, Metrics* metrics,
          OtlpExporter* traces = nullptr);

  // What the HTTP layer refuses, in OpenAI's shape.
  static HttpResponse Refusal(const HttpError& error);

  // Waits for requests to end: cancel them first (HttpServer::Shutdown does).
  ~Gateway();

  void Handle(HttpRequest request, HttpResponder responder);
  // /ready says 503 from now on, so that load balancers look elsewhere.
  void Drain() { draining_ = true; }

 private:
  // Who may ask; an error that says why not.
  std::optional<ApiError> Allow(const HttpRequest& request, bool completion, RequestIdentity* identity,
                                std::shared_ptr<Access::Grant>* grant);
  // An answer made at once.
  HttpResponse Answer(const HttpRequest& request, absl::string_view route);
  HttpResponse Models() const;
  HttpResponse Model(absl::string_view id) const;
  HttpResponse Ready(const HttpRequest& request) const;
  // One completion has ended: its account, its metrics, its line.
  void OnCompletionEnd(const std::string& path, const RequestIdentity& identity, const std::string& peer,
                       const CompletionOutcome& outcome);
  void ExportSpan(const RequestIdentity& identity, const CompletionOutcome& outcome);

  const Options options_;
  const Cors cors_;
  Access* const access_;
  const ServedModels* const models_;
  Router* const router_;
  Metrics* const metrics_;
  OtlpExporter* const traces_;
  Completions completions_;
  std::atomic<bool> draining_{false};
};

}  // namespace aludel
