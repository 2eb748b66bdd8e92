#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/gateway/gateway.h"
#include "server/http/http_server.h"

namespace aludel {

// Answers from the first moment on, while the models' tokenizers are loaded, which takes seconds for each: /health says that
// the process lives, /ready that it is loading, and all else is a 503 with Retry-After. Then the gateway answers.
// Thread-safe; must outlive its server.
class Front {
 public:
  // `models`: names, for /ready.
  explicit Front(std::vector<std::string> models) : models_(std::move(models)) {}

  absl::StatusOr<std::unique_ptr<HttpServer>> Listen(HttpServerOptions options);
  // From now on requests go to `gateway`, which must outlive the server's last one (HttpServer::Shutdown).
  void Open(Gateway* gateway);

 private:
  struct Behind {
    HttpServerOptions callbacks;
    HttpServer::Handler handle;
  };
  std::shared_ptr<const Behind> behind() const;
  HttpResponse AnswerLoading(const HttpRequest& request) const;

  const std::vector<std::string> models_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Behind> behind_ ABSL_GUARDED_BY(mutex_);  // null: still loading
};

}  // namespace aludel
