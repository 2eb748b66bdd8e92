#include "server/prefill/run_timeline.h"

#include "absl/strings/str_cat.h"

namespace aludel {

void RunTimeline::SentFromCache(absl::Time now) {
  times_ = {.encode = absl::ToDoubleSeconds(now - sending_began_)};
}

RunTimeline::Ended RunTimeline::End(absl::StatusCode code, absl::Time now) const {
  return {code, absl::ToDoubleSeconds(now - received_)};
}

Span RunTimeline::ToSpan(const TraceContext& context, const TraceContext& caller, const std::string& model,
                         const std::string& request_id, const Frames& sent, const absl::Status& status,
                         absl::Time now, absl::Time wall_now) const {
  return {.context = context,
          .parent = caller.span_id,
          .name = absl::StrCat("prefill ", model),
          .kind = Span::Kind::kServer,
          .start = wall_now + (received_ - now),
          .end = wall_now,
          .error = status.ok() ? "" : status.ToString(),
          .attributes = {{"gen_ai.request.model", model},
                         {"aludel.request_id", request_id},
                         {"aludel.frames", static_cast<int64_t>(sent.frames)},
                         {"aludel.payload_bytes", static_cast<int64_t>(sent.bytes)},
                         {"aludel.stage.queue_seconds", times_.queue},
                         {"aludel.stage.prefill_seconds", times_.prefill},
                         {"aludel.stage.encode_seconds", times_.encode}}};
}

}  // namespace aludel
