#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/readiness.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_message.h"

namespace aludel {

// What the operator asks of a gateway: its load, its models, its routing, and that caches are forgotten. Thread-safe.
class OperatorApi {
 public:
  struct Options {
    int max_requests = 0;  // as they are told
    absl::Duration request_timeout;
  };
  // All must outlive this.
  OperatorApi(const Options& options, const ServedModels* models, Router* router, const Readiness* readiness)
      : options_(options), models_(models), router_(router), readiness_(readiness) {}

  // /load, /server_info, /admin/routing and /reset_prefix_cache; nothing for other paths.
  std::optional<HttpResponse> Answer(const HttpRequest& request) const;

 private:
  HttpResponse Load() const;
  HttpResponse ServerInfo() const;
  // Waits for the decode servers.
  HttpResponse ResetCache() const;
  HttpResponse Routing(absl::string_view query) const;

  const Options options_;
  const ServedModels* const models_;
  Router* const router_;
  const Readiness* const readiness_;
};

}  // namespace aludel
