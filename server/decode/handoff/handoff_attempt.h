#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/decode/decode_context.h"
#include "server/decode/handoff/credit_grants.h"
#include "server/decode/handoff/handoff_report.h"
#include "server/decode/handoff/handoff_spec.h"
#include "server/decode/handoff/run_call.h"
#include "server/decode/handoff/ticket_owner.h"
#include "server/decode/handoff/ticket_state.h"
#include "server/handoff/frame_arena.h"
#include "server/process/timer.h"

namespace aludel {

// One try of a handoff: a ticket at the receiver, and a run at a prefill server that has it. The ticket's owner, which
// owns the attempt, too, hears of its loss through TicketOwner: from the receiver, and from here where a grant did not
// reach the prefill server, or a run has ended and the frames that it announced no longer come.
//
//   made --Start--> open --Close--> closed         Close may also come first, or while Start is under way
//
// Thread-safe; calls into the receiver, gRPC and the owner are made without the lock.
class HandoffAttempt : public std::enable_shared_from_this<HandoffAttempt> {
 public:
  // Asks `target`; all ends with `until`. `context` and `spec` must outlive the owner.
  HandoffAttempt(const DecodeContext& context, const HandoffSpec& spec, int number, size_t target,
                 absl::Time until);

  int number() const { return number_; }  // from 1
  size_t target() const { return target_; }
  const TicketId& ticket() const { return ticket_; }

  // Opens the ticket, whose frames go to `extent`, and begins the run. Once.
  // Calls of gRPC keep `owner` alive, and Close lets it go.
  void Start(const std::shared_ptr<TicketOwner>& owner, FrameExtent extent, bool frame_times,
             RunCall::Callbacks callbacks);
  // Closes the ticket as `end` and ends the run; one that has completed gets a moment to end by itself. Nothing where
  // it was closed before.
  std::optional<TicketUsage> Close(TicketState end);

  // Of frames in two parts the first ones are all here. What has come so far.
  TicketUsage BaseReceived();
  void FrameReceived(absl::Time now);
  void RaiseCredit(uint64_t credit);
  // The prefill server has sent all frames, so many of them.
  void Announced(uint64_t frames);
  void RunEnded();
  // For a run that has ended well: frames that are still on the link have a while to come.
  void AwaitFrames() { AwaitFrames(/*received_before=*/0, absl::ZeroDuration()); }

  // InfiniteFuture() where none has come.
  absl::Time last_frame() const;
  bool AllHere() const;

 private:
  void AwaitFrames(uint64_t received_before, absl::Duration idle);

  const DecodeContext& context_;
  const HandoffSpec& spec_;
  const int number_;
  const size_t target_;
  const absl::Time until_;
  const TicketId ticket_;

  mutable absl::Mutex mutex_;
  std::weak_ptr<TicketOwner> owner_ ABSL_GUARDED_BY(mutex_);
  SiteLinks::Use link_use_ ABSL_GUARDED_BY(mutex_);
  bool base_received_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t forgotten_ ABSL_GUARDED_BY(mutex_) = 0;    // CostModel::forgotten() when it began
  int64_t asked_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // of the pool's account: not known to be computed
  std::shared_ptr<RunCall> run_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CreditGrants> grants_ ABSL_GUARDED_BY(mutex_);
  Timer::Id deadline_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  Timer::Id frames_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t announced_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_frame_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
