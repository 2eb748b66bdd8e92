#include "server/decode/handoff/run_request.h"

namespace aludel {

std::optional<uint64_t> FirstCredit(uint64_t window_bytes, uint64_t bound_bytes) {
  if (window_bytes >= bound_bytes) return std::nullopt;
  // The last quarter is what the ring's end may waste: HandoffWindow leaves room for a step there.
  return window_bytes / 4 * 3;
}

v1::RunRequest MakeRunRequest(const HandoffSpec& spec, const TicketTerms& terms, bool frame_times) {
  v1::RunRequest run;
  run.set_request_id(spec.request_id);
  run.set_frame_times(frame_times);
  run.set_cache_salt(spec.tenant);
  run.set_no_store(spec.no_store);
  if (spec.workflow) *run.mutable_workflow() = *spec.workflow;
  run.mutable_prompt()->Add(spec.prompt.begin(), spec.prompt.end());
  if (spec.max_staleness_ms) run.set_max_staleness_ms(*spec.max_staleness_ms);
  v1::Ticket* ticket = run.mutable_ticket();
  ticket->set_id(std::string(terms.id.begin(), terms.id.end()));
  ticket->set_epoch(terms.epoch);
  ticket->set_receiver_address(terms.receiver_address);
  ticket->set_frame_key(terms.frame_key);
  ticket->mutable_format()->set_name(spec.codec->name);
  ticket->mutable_format()->set_artifact_hash(spec.codec->artifact_hash);
  if (terms.credit_bytes) {
    ticket->set_window_bytes(terms.window_bytes);
    ticket->set_credit_bytes(*terms.credit_bytes);
  }
  return run;
}

}  // namespace aludel
