#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "server/rpc/deadline.h"

namespace aludel {

// Has every server of `servers` reset its caches, and calls `done` once, when all have answered: on one of gRPC's threads, or
// at once where there are none. Unavailable names those that did not confirm it until the deadline, a time of
// MonotonicNow(). `Stub`: of v1::Decode or v1::Prefill; it must outlive the call.
template <typename Stub>
void ResetCaches(const std::vector<std::pair<std::string, Stub*>>& servers, absl::Time deadline,
                 std::function<void(const absl::Status&)> done) {
  // Owned by the calls that have not ended.
  struct Resets {
    std::function<void(const absl::Status&)> done;
    absl::Mutex mutex;
    size_t open ABSL_GUARDED_BY(mutex) = 0;
    std::string failed ABSL_GUARDED_BY(mutex);

    void Ended(const std::string& server, const grpc::Status& status) {
      std::string names;
      {
        absl::MutexLock lock(&mutex);
        if (!status.ok()) {
          absl::StrAppend(&failed, failed.empty() ? "" : "; ", server, ": ", status.error_message());
        }
        if (--open > 0) return;
        names = failed;
      }
      done(names.empty() ? absl::OkStatus() : absl::UnavailableError(names));
    }
  };
  struct Call {
    grpc::ClientContext context;
    v1::ResetCacheRequest request;
    v1::ResetCacheResponse response;
  };
  if (servers.empty()) return done(absl::OkStatus());
  const auto resets = std::make_shared<Resets>();
  resets->done = std::move(done);
  {
    absl::MutexLock lock(&resets->mutex);
    resets->open = servers.size();
  }
  for (const auto& [name, stub] : servers) {
    const auto call = std::make_shared<Call>();
    call->context.set_deadline(ToGrpcDeadline(deadline));
    stub->async()->ResetCache(
        &call->context, &call->request, &call->response,
        [resets, call, name = name](const grpc::Status& status) { resets->Ended(name, status); });
  }
}

}  // namespace aludel
