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
#include "server/decode/codes/code_replay.h"
#include "server/decode/codes/frame_collector.h"
#include "server/decode/decode_context.h"
#include "server/decode/handoff/handoff_account.h"
#include "server/decode/handoff/handoff_attempt.h"
#include "server/decode/handoff/handoff_report.h"
#include "server/decode/handoff/handoff_spec.h"
#include "server/decode/handoff/handoff_trace.h"
#include "server/decode/handoff/ticket_owner.h"
#include "server/decode/handoff/ticket_state.h"
#include "server/decode/handoff/upgrade_outcome.h"
#include "server/handoff/frame_arena.h"

namespace aludel {

// Gets one sequence's cache from prefill servers, in attempts (HandoffAttempt), or from what this server has received
// before (CodeReplay). An attempt that fails before the
// handoff's time is up is followed by one at another server, with a ticket of its own, where there is one that has the
// format; otherwise the engine is told to prefill the prompt itself. Where it takes longer than its patience, the engine
// is told to prefill the prompt beside it. The owner ends it when the cache is complete or no longer wanted.
//
//   new --Begin--> replay, or attempt 1 --failed--> attempt 2 ... --failed, or time is up--> given up (engine falls back)
//        '---------------------- End, from anywhere: completed or abandoned ---------------------'
//
// Where frames come in two parts (CodecSpec::base_planes), its last attempt goes on when the cache is complete, and brings the
// second ones until all have come, its time is up, it fails or the owner ends it again. Nothing is done about a failure then,
// but that it is counted: the cache is complete.
//
// Thread-safe; calls into the engine, the receiver and gRPC are made without the lock.
class Handoff : public TicketOwner, public std::enable_shared_from_this<Handoff> {
 public:
  using Spec = HandoffSpec;
  using Report = HandoffReport;

  Handoff(const DecodeContext& context, Spec spec);
  ~Handoff() override;

  // Asks `target`, or with kOwnStore this server's own store; frames go to `extent`. After End it does nothing.
  void Begin(SequenceId sequence, size_t target, FrameExtent extent);
  // The engine has given up what came, for this: the server that sent it is blamed where it was damaged. Before End.
  void Rejected(const absl::Status& reason);
  // Closes the ticket as `end` and ends the run, if there are any. Idempotent. kCompleted: the cache is complete; where second
  // parts are to come the ticket stays open for them until the next call.
  void End(TicketState end);
  // The engine has all second parts of the frames, after so many tokens of the answer, or has refused one of them.
  void Upgraded(const absl::Status& status, int64_t completion_tokens);
  Report report() const { return account_.report(); }
  const std::vector<int32_t>& prompt() const { return spec_.prompt; }
  const std::string& cache_salt() const { return spec_.cache_salt; }
  bool no_store() const { return spec_.no_store; }
  // Calls `then` with the prefill server's own times, which may come after the last frame: at once, later on
  // gRPC's thread, or never if the run ends without them. After End, and once.
  void WhenAccounted(std::function<void(const Handoff&, const Report&)> then);
  // The first token is out. Null where nothing is traced.
  HandoffTrace* trace() const { return trace_.get(); }
  // Writes the trace, where traces have a folder, to a file of its own; not in the caller's time.
  void WriteTrace() const;

 private:
  void Start(size_t target, FrameExtent extent);
  void Replay(FrameExtent extent);
  void OnReplayed(const absl::Status& status);
  // From a prefill server or, without ticket and epoch, from the store.
  void Deliver(const FrameHeader& header, std::vector<uint8_t> header_bytes,
               absl::Span<const uint8_t> payload, std::function<void()> release);
  // Of the last attempt: the engine prefills the prompt where no other server can be asked.
  void GoOn(const absl::Status& reason);
  // Passes the frame to the engine.
  void OnFrameReceived(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                       absl::Span<const uint8_t> payload, std::function<void()> release) override;
  void OnTicketLost(const TicketId& ticket, const absl::Status& reason) override;
  void OnCreditRaised(const TicketId& ticket, uint64_t credit) override;
  void OnRunEvent(int attempt, size_t target, const v1::RunEvent& event);
  void OnRunEnd(int attempt, const absl::Status& status);
  // Has the prompt also prefilled here if frames are late by now; else looks again when they would be.
  void CheckLate();
  // Asks the next server in place of the first if that is not about to be done; else looks again.
  void CheckMove();
  // The running attempt if it is this one; else null.
  std::shared_ptr<HandoffAttempt> Running(int attempt) const;
  void Fail(int attempt, const absl::Status& reason);
  bool TryElsewhere(const absl::Status& reason);
  void Close(HandoffAttempt& attempt, TicketState end);
  // The cache is complete with the first parts.
  void BeginUpgrade();
  // Closes the attempt and counts the outcome; nothing where no second parts are to come any more.
  void EndUpgrade(UpgradeOutcome outcome);
  void BlameTarget(size_t target, const absl::Status& status);

  const DecodeContext& context_;
  const Spec spec_;
  const std::shared_ptr<HandoffTrace> trace_;  // may be null
  absl::Time until_ = absl::InfiniteFuture();  // set by Begin
  SequenceId sequence_ = 0;                    // set by Begin
  std::unique_ptr<FrameCollector> collector_;  // set by Begin; null: nothing is kept

  HandoffAccount account_;

  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;   // and therefore over
  bool upgrading_ ABSL_GUARDED_BY(mutex_) = false;  // it is over, and its attempt goes on
  std::optional<UpgradeOutcome> early_upgrade_ ABSL_GUARDED_BY(mutex_);  // known before it was over
  std::shared_ptr<HandoffAttempt> attempt_ ABSL_GUARDED_BY(mutex_);      // that runs
  std::shared_ptr<CodeReplay> replay_ ABSL_GUARDED_BY(mutex_);           // before the first one
  std::vector<size_t> tried_ ABSL_GUARDED_BY(mutex_);  // bounded by the number of prefill servers
};

}  // namespace aludel
