#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_message.h"

namespace aludel {

// Whether a gateway lives, and whether it can serve: /health and /ready. Thread-safe.
class Readiness {
 public:
  // `health`: of the process; not OK: neither healthy nor ready. May be null. The others must outlive this.
  Readiness(std::function<absl::Status()> health, const ServedModels* models, const Router* router)
      : health_(std::move(health)), models_(models), router_(router) {}

  // OK as soon as one model can be served, or where `model` names one, when that can; else Unavailable with
  // the reasons. The rule of /ready.
  absl::Status Check(absl::string_view model = {}) const;
  // Not ready from now on.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }

  // The process answers, and its threads move.
  HttpResponse Health() const;
  HttpResponse Ready(const HttpRequest& request) const;

 private:
  const std::function<absl::Status()> health_;
  const ServedModels* const models_;
  const Router* const router_;
  std::atomic<bool> draining_{false};
};

}  // namespace aludel
