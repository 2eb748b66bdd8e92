#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/engine.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/trace_context.h"

namespace aludel {

// What is observed about one run, and exported of it at its end. The counterpart of the decode server's
// RequestTimeline, which has tokens and stages where a run has frames. Values in, values out: times are
// passed in (MonotonicNow()), and nothing here locks, logs or exports. Not thread-safe.
//
//   SendingBegan -> Computed or SentFromCache -> End        End may follow each of them.
class RunTimeline {
 public:
  struct Frames {
    uint64_t frames = 0;
    uint64_t bytes = 0;  // headers included
  };
  struct Ended {
    absl::StatusCode code = absl::StatusCode::kOk;
    double seconds = 0;  // since the run was received
  };

  explicit RunTimeline(absl::Time received) : received_(received) {}

  // There is a connection: frames may leave.
  void SendingBegan(absl::Time now) { sending_began_ = now; }
  // The engine has ended the computation.
  void Computed(const SequenceTimes& times) { times_ = times; }
  // Nothing was left to compute: copying frames out of the cache was the encoding.
  void SentFromCache(absl::Time now);
  Ended End(absl::StatusCode code, absl::Time now) const;
  // `context` lies within `caller`; `wall_now` is the wall clock's `now`.
  Span ToSpan(const TraceContext& context, const TraceContext& caller, const std::string& model,
              const std::string& request_id, const Frames& sent, const absl::Status& status, absl::Time now,
              absl::Time wall_now) const;

  absl::Time received() const { return received_; }
  // Of the computation.
  const SequenceTimes& times() const { return times_; }

 private:
  const absl::Time received_;
  absl::Time sending_began_;
  SequenceTimes times_;
};

}  // namespace aludel
