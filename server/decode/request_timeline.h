#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/engine.h"
#include "server/decode/handoff/handoff_report.h"
#include "server/decode/plan/plan.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/request_metrics.h"
#include "server/observe/trace_context.h"

namespace aludel {

// A request's place in its caller's trace.
struct RequestTrace {
  TraceContext caller;
  TraceContext request;  // within the caller's operation
  TraceContext handoff;  // within the request's
};

// What is observed about one request: its plan, its tokens and where its time went; and what is exported of
// it at the first token and at the end. Values in, values out: times are passed in (MonotonicNow()), and
// nothing here locks, logs or exports. Not thread-safe.
//
//   Received -> Planned -> FirstToken -> Token ... -> End        End may follow each of them.
class RequestTimeline {
 public:
  // How a handoff ended, for the request that it was part of.
  struct HandoffOutcome {
    absl::StatusCode code = absl::StatusCode::kOk;
    double seconds = 0;
  };
  // What is known once the first token is out, or the end of an answer without one.
  struct Started {
    RequestLabels labels;
    PlanKind plan = PlanKind::kLocal;
    int64_t prompt_tokens = 0;
    StageSeconds stages;
    double before_admission = 0;            // part of stages.ttft
    std::optional<double> predicted_ttft;   // of a plan that was carried out
    std::optional<HandoffOutcome> handoff;  // of a remote plan, whether it fell back or not
    int64_t handed_over_tokens = 0;         // 0 unless the handoff was complete
  };
  struct Ended {
    RequestLabels labels;
    absl::StatusCode code = absl::StatusCode::kOk;
    double seconds = 0;
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
    std::optional<HandoffOutcome> handoff;  // of a remote plan that ends before its first token
  };

  RequestTimeline(std::string model, absl::Time received);

  void Received(std::string request_id, int64_t prompt_tokens);
  // The model that answers is not the one that it was received for, but an adapter over it.
  void Adapted(std::string model);
  // The engine gets the sequence. `handed_over_tokens` of a remote or stored plan come as frames.
  void Planned(const Plan& plan, int64_t handed_over_tokens, int choices, absl::Time now);
  // What was to come from this server's own store was asked of a prefill server in the end: the plan is a remote one from
  // now on, which nothing was predicted for.
  void AskedServer();
  // `fallback` is why a remote plan's handoff failed; ok where it did not.
  Started FirstToken(const SequenceTimes& times, const std::optional<ProducerSeconds>& producer,
                     bool fell_back, absl::StatusCode fallback, absl::Time now);
  // Seconds since this choice's token before; nothing for its first.
  std::optional<double> Token(int choice, bool first, absl::Time now);
  Ended End(absl::StatusCode code, absl::Time now) const;
  // The request's span, then that of its handoff if that has ended. `wall_now` is the wall clock's `now`.
  std::vector<Span> Spans(const RequestTrace& trace, const HandoffReport& handoff, const absl::Status& status,
                          absl::Time now, absl::Time wall_now) const;

  bool started() const { return started_; }
  // As it was planned; 0 where nothing was predicted.
  double predicted_ttft() const { return predicted_ttft_.value_or(0); }

 private:
  RequestLabels Labels() const { return {.model = model_, .plan = Name(plan_), .format = format_}; }

  std::string model_;
  const absl::Time received_;
  std::string request_id_;
  int64_t prompt_tokens_ = 0;
  absl::Time admitted_;
  PlanKind plan_ = PlanKind::kLocal;  // kFallback once it has fallen back
  std::string format_;                // "" unless the cache came through a handoff, now or earlier
  int64_t handed_over_tokens_ = 0;
  std::optional<double> predicted_ttft_;
  bool replanned_ = false;
  bool started_ = false;
  StageSeconds stages_;                 // once started
  std::vector<absl::Time> last_token_;  // by choice
  int64_t completion_tokens_ = 0;
};

}  // namespace aludel
