#include "server/prefill/run_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "server/rpc/rpc_fields.h"
#include "server/rpc/workflow_fields.h"

namespace aludel {

absl::StatusOr<RunSpec> ReadRunRequest(const v1::RunRequest& request, FindEncoders find_codec) {
  ALUDEL_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  ALUDEL_RETURN_IF_ERROR(CheckCacheSalt(request.cache_salt()));
  if (request.has_workflow()) ALUDEL_RETURN_IF_ERROR(CheckWorkflow(request.workflow()));
  RunSpec spec;
  const v1::Ticket& ticket = request.ticket();
  if (ticket.id().size() != spec.ticket.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ticket.id: found ", ticket.id().size(), " bytes, want ", spec.ticket.size()));
  }
  if (request.prompt().empty())
    return absl::InvalidArgumentError("prompt: found no tokens, want at least one");
  spec.codec = find_codec(ticket.format().name(), ticket.format().artifact_hash());
  if (spec.codec == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("ticket.format: \"", Quotable(ticket.format().name()),
                                                      "\" is not a format of this server"));
  }
  if (spec.codec->spec().artifact_hash != ticket.format().artifact_hash()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ticket.format: artifact of \"", spec.codec->spec().name, "\" is ",
        Quotable(ticket.format().artifact_hash()), ", this server has ", spec.codec->spec().artifact_hash));
  }
  ALUDEL_ASSIGN_OR_RETURN(spec.cipher, FrameCipher::FromTicket(ticket.frame_key()));
  std::copy(ticket.id().begin(), ticket.id().end(), spec.ticket.begin());
  spec.epoch = ticket.epoch();
  if (ticket.has_credit_bytes()) {
    spec.credit = ticket.credit_bytes();
    spec.receiver_window_bytes = ticket.window_bytes();
  }
  spec.request_id = request.request_id();
  spec.cache_salt = request.cache_salt();
  spec.no_store = request.no_store();
  spec.frame_times = request.frame_times();
  if (request.has_workflow()) {
    const v1::Workflow& workflow = request.workflow();
    spec.workflow =
        WorkflowStep{workflow.id(), workflow.agent(), {workflow.next().begin(), workflow.next().end()}};
  }
  spec.prompt.assign(request.prompt().begin(), request.prompt().end());
  if (request.has_max_staleness_ms()) spec.max_staleness = absl::Milliseconds(request.max_staleness_ms());
  return spec;
}

}  // namespace aludel
