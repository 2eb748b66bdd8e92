#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/decode/decode_context.h"
#include "server/decode/handoff/credit_grants.h"
#include "server/decode/handoff/handoff_report.h"
#include "server/decode/handoff/handoff_trace.h"
#include "server/decode/handoff/kv_receiver.h"
#include "server/decode/handoff/patience.h"
#include "server/decode/handoff/run_call.h"
#include "server/decode/handoff/ticket_owner.h"
#include "server/decode/handoff/ticket_state.h"
#include "server/decode/plan/planner.h"
#include "server/handoff/frame_arena.h"
#include "server/process/timer.h"

namespace aludel {

// Gets one sequence's cache from prefill servers: a ticket at the receiver and a run at a server, together an
// attempt. An attempt that fails before the handoff's time is up is followed by one at another server, with
// a ticket of its own, where there is one that has the format; otherwise the engine is told to prefill the
// prompt itself. Where it takes longer than its patience, the engine is told to prefill the prompt beside it.
// The owner ends it when the cache is complete or no longer wanted.
//
//   new --Begin--> attempt 1 --failed--> attempt 2 ... --failed, or time is up--> given up (engine falls
//   back)
//        '---------------------- End, from anywhere: completed or abandoned ---------------------'
//
// Thread-safe; calls into the engine, the receiver and gRPC are made without the lock.
class Handoff : public TicketOwner, public std::enable_shared_from_this<Handoff> {
 public:
  struct Spec {
    std::string request_id;
    std::string traceparent;      // "": none
    std::vector<int32_t> prompt;  // up to the last token that is handed over
    const CodecSpec* codec = nullptr;
    std::string cache_salt;                    // of what is known here
    std::string tenant;                        // the request's salt, for the prefill server
    std::optional<uint64_t> max_staleness_ms;  // of codes from the prefill server's cache
    bool trace = false;                        // the request asks for it
    PlanRequest wanted;                        // what the request asked for, its format being the codec's
    absl::Time deadline;                       // of the request; MonotonicNow()
    Patience patience;
    // The next server is asked if by then the first has not sent everything and none of its frames came for
    // move_silence. While they come it has until the patience is over.
    absl::Duration move_after = absl::InfiniteDuration();
    absl::Duration move_silence;
  };
  using Report = HandoffReport;

  Handoff(const DecodeContext& context, Spec spec);
  ~Handoff() override;

  // Asks `target`, whose frames go to `extent`. After End it does nothing.
  void Begin(SequenceId sequence, size_t target, FrameExtent extent);
  // Closes the ticket as `end` and ends the run, if there are any. Idempotent.
  void End(TicketState end);
  Report report() const;
  const std::vector<int32_t>& prompt() const { return spec_.prompt; }
  const std::string& cache_salt() const { return spec_.cache_salt; }
  // Calls `then` with the prefill server's own times, which may come after the last frame: at once, later on
  // gRPC's thread, or never if the run ends without them. After End, and once.
  void WhenAccounted(std::function<void(const Handoff&, const Report&)> then);
  // The first token is out. Null where nothing is traced.
  HandoffTrace* trace() const { return trace_.get(); }
  // Writes the trace, where traces have a folder, to a file of its own; not in the caller's time.
  void WriteTrace() const;

 private:
  struct Attempt {
    int number = 0;  // from 1; tells callbacks of earlier attempts apart
    size_t target = 0;
    TicketId ticket = {};
    std::shared_ptr<RunCall> run;
    Timer::Id deadline_timer = 0;
    Timer::Id received_timer = 0;
    uint64_t announced_frames = 0;  // once the run has finished
    std::shared_ptr<CreditGrants> grants;
    absl::Time last_frame = absl::InfiniteFuture();
  };

  void Start(size_t target, FrameExtent extent);
  v1::RunRequest MakeRun(const TicketId& id, const std::string& frame_key) const;
  // Passes the frame to the engine.
  void OnFrameReceived(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                       absl::Span<const uint8_t> payload, std::function<void()> release) override;
  void OnTicketLost(const TicketId& ticket, const absl::Status& reason) override;
  void OnCreditRaised(const TicketId& ticket, uint64_t credit) override;
  void OnRunEvent(int attempt, size_t target, const v1::RunEvent& event);
  void OnRunEnd(int attempt, const absl::Status& status);
  // Checks for frames that a finished run has sent and that no longer arrive: they were lost.
  void CheckReceived(int attempt, uint64_t received_before, absl::Duration idle);
  // Has the prompt also prefilled here if frames are late by now; else looks again when they would be.
  void CheckLate();
  // Asks the next server in place of the first if that is not about to be done; else looks again.
  void CheckMove();
  bool AllHere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(int attempt, const absl::Status& reason);
  bool TryElsewhere(const absl::Status& reason);
  void Release(Attempt attempt, TicketState end);
  void BlameTarget(size_t target, const absl::Status& status);

  const DecodeContext& context_;
  const Spec spec_;
  const std::shared_ptr<HandoffTrace> trace_;  // may be null
  absl::Time until_ = absl::InfiniteFuture();  // set by Begin
  SequenceId sequence_ = 0;                    // set by Begin

  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Attempt attempt_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> tried_ ABSL_GUARDED_BY(mutex_);  // bounded by the number of prefill servers
  Report report_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Handoff&, const Report&)> when_accounted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
