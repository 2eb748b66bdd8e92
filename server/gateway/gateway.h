#pragma once

#include <atomic>
#include <string>

#include "server/gateway/completions.h"
#include "server/gateway/http_server.h"
#include "server/gateway/router.h"
#include "server/gateway/served_models.h"
#include "server/metrics.h"

namespace aludel {

// Every HTTP path of aludel-gateway; Handle is HttpServer's handler. Thread-safe; everything it is given must
// outlive it and its requests.
class Gateway {
 public:
  Gateway(Completions::Options options, const ServedModels* models, Router* router, Metrics* metrics);

  void Handle(HttpRequest request, HttpResponder responder);
  // /ready says 503 from now on, so that load balancers look elsewhere.
  void Drain() { draining_ = true; }

 private:
  // An answer made at once.
  HttpResponse Answer(const HttpRequest& request, absl::string_view route);
  HttpResponse Models() const;
  HttpResponse Model(absl::string_view id) const;
  HttpResponse Ready(const HttpRequest& request) const;

  const ServedModels* const models_;
  Router* const router_;
  Metrics* const metrics_;
  Completions completions_;
  std::atomic<bool> draining_{false};
};

}  // namespace aludel
