#include "server/gateway/routing/adapter_calls.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/files/stop_scope.h"
#include "runtime/status_macros.h"
#include "server/rpc/handoff_version.h"
#include "server/rpc/rpc_status.h"

namespace aludel {
namespace {

void LimitTime(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + kAdapterCallTimeout));
}

absl::Status OnServer(const DecodeTarget& target, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(target.name(), ": ", status.message()));
}

// A server of an older build does not know of cache_of, and has loaded the adapter as one of its own cache.
absl::Status CheckLoaded(DecodeTarget& target, const v1::LoadAdapterRequest& request,
                         const v1::LoadAdapterResponse& response) {
  if (request.cache_of().empty() || request.cache_of() == "adapter" ||
      response.cache_of() == request.cache_of()) {
    return absl::OkStatus();
  }
  grpc::ClientContext context;
  LimitTime(&context);
  v1::UnloadAdapterRequest undo;
  undo.set_name(request.name());
  v1::UnloadAdapterResponse undone;
  const grpc::Status status = target.stub()->UnloadAdapter(&context, undo, &undone);
  return OnServer(target, absl::FailedPreconditionError(absl::StrCat(
                              "is of an older build, which has no cache_of \"", request.cache_of(), "\"",
                              status.ok() ? "" : "; it serves the adapter as one of its own cache now")));
}

// What the server serves now: the next request may name it, or does not find it.
void Ask(DecodeTarget& target) {
  if (!CheckStop().ok()) return;
  grpc::ClientContext context;
  LimitTime(&context);
  v1::DescribeRequest request;
  request.set_protocol_version(kHandoffVersion);
  v1::DecodeDescription description;
  if (target.stub()->Describe(&context, request, &description).ok()) target.Described(description);
}

}  // namespace

absl::Status LoadAdapter(const DecodeTargets& targets, const std::string& model,
                         const v1::LoadAdapterRequest& request) {
  absl::Status known = absl::OkStatus();
  bool added = false;
  for (const std::shared_ptr<DecodeTarget>& target : targets.Of(model)) {
    ALUDEL_RETURN_IF_ERROR(CheckStop());  // the client has gone
    grpc::ClientContext context;
    LimitTime(&context);
    v1::LoadAdapterResponse response;
    absl::Status status =
        OnServer(*target, FromGrpc(target->stub()->LoadAdapter(&context, request, &response)));
    if (status.ok()) status = CheckLoaded(*target, request, response);
    if (status.ok()) {
      added = true;
      Ask(*target);
    } else if (absl::IsAlreadyExists(status)) {
      known = status;
    } else {
      return status;
    }
  }
  return added ? absl::OkStatus() : known;
}

absl::Status UnloadAdapter(const DecodeTargets& targets, const std::string& model, const std::string& name) {
  v1::UnloadAdapterRequest request;
  request.set_name(name);
  absl::Status failed;
  absl::Status unknown = absl::OkStatus();
  bool removed = false;
  for (const std::shared_ptr<DecodeTarget>& target : targets.Of(model)) {
    ALUDEL_RETURN_IF_ERROR(CheckStop());
    grpc::ClientContext context;
    LimitTime(&context);
    v1::UnloadAdapterResponse response;
    const absl::Status status =
        OnServer(*target, FromGrpc(target->stub()->UnloadAdapter(&context, request, &response)));
    if (status.ok()) {
      removed = true;
      Ask(*target);
    } else if (absl::IsNotFound(status)) {
      unknown = status;
    } else if (failed.ok()) {
      failed = status;
    }
  }
  if (!failed.ok()) return failed;
  return removed ? absl::OkStatus() : unknown;
}

}  // namespace aludel
