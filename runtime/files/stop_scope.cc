#include "runtime/files/stop_scope.h"

#include <utility>

namespace aludel {
namespace {

thread_local StopScope* innermost = nullptr;

}  // namespace

StopScope::StopScope(std::stop_token token) : token_(std::move(token)), outer_(innermost) {
  innermost = this;
}

StopScope::~StopScope() { innermost = outer_; }

absl::Status CheckStop() {
  if (innermost == nullptr || !innermost->token_.stop_requested()) return absl::OkStatus();
  return absl::CancelledError("the work was stopped");
}

}  // namespace aludel
