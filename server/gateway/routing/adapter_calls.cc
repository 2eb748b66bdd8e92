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
    const absl::Status status =
        OnServer(*target, FromGrpc(target->stub()->LoadAdapter(&context, request, &response)));
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
