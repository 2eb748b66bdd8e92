#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/gateway/gateway.h"
#include "server/http/http_server.h"
#include "server/observe/metrics.h"

namespace aludel {

// Answers from the first moment on, while the models' tokenizers are loaded, which takes seconds for each: /health says that
// the process lives, /ready how far each model is, /metrics what there is to measure, and all else is a 503 with
// Retry-After. Then the gateway answers. Thread-safe; must outlive its servers.
class Front {
 public:
  // `metrics`: of /metrics; null: another port has them.
  Front(const std::vector<std::string>& models, Metrics* metrics);

  absl::StatusOr<std::unique_ptr<HttpServer>> Listen(HttpServerOptions options);
  // For the operator's own port, before and after Open.
  absl::Status CheckReady() const;
  std::optional<HttpResponse> AnswerAdmin(const HttpRequest& request) const;

  // How far `model` is; see ServedModels::Progress.
  void Loads(const std::string& model, bool loaded);
  // From now on requests go to `gateway`, which must outlive the server's last one (HttpServer::Shutdown).
  void Open(Gateway* gateway);

 private:
  struct Behind {
    Gateway* gateway = nullptr;
    HttpServerOptions callbacks;
    HttpServer::Handler handle;
  };
  std::shared_ptr<const Behind> behind() const;
  // "the tokenizers of a, b", which are not loaded yet.
  std::string Missing() const;
  HttpResponse AnswerLoading(const HttpRequest& request) const;
  HttpResponse RefuseLoading(const HttpRequest& request, const HttpError& refused) const;

  Metrics* const metrics_;
  mutable absl::Mutex mutex_;
  std::map<std::string, const char*> states_
      ABSL_GUARDED_BY(mutex_);  // "waiting", "loading" or "loaded", by model
  std::shared_ptr<const Behind> behind_ ABSL_GUARDED_BY(mutex_);  // null: still loading
};

}  // namespace aludel
