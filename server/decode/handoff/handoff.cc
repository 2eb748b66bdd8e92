#include "server/decode/handoff/handoff.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/decode/plan/planner.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

constexpr uint32_t kMaxTraces = 256;
// With less time left no other server is asked.
constexpr absl::Duration kLeastAttempt = absl::Milliseconds(125);
// A late handoff whose hedge found no place asks for one again.
constexpr absl::Duration kHedgeRetry = absl::Milliseconds(100);
constexpr absl::Duration kTraceDelay = absl::Milliseconds(300);

absl::Status Late(const Patience& patience, absl::Duration taken) {
  return absl::DeadlineExceededError(
      taken >= patience.whole
          ? absl::StrFormat("the handoff was to take %.3f s at most, and local prefill beside it was sooner",
                            absl::ToDoubleSeconds(patience.whole))
          : absl::StrFormat(
                "no frame came for %.3f s, %.3f s after the handoff began, and local prefill beside it "
                "was sooner",
                absl::ToDoubleSeconds(patience.silence), absl::ToDoubleSeconds(taken)));
}

// Found by the run, or by what waits for its frames.
bool BlamedWhereItFails(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsDataLoss(status);
}

}  // namespace

Handoff::Handoff(const DecodeContext& context, Spec spec)
    : context_(context),
      spec_(std::move(spec)),
      trace_(spec_.trace || !context.options->tracing.handoff_trace_directory.empty()
                 ? std::make_shared<HandoffTrace>()
                 : nullptr) {
  context_.sessions_open->fetch_add(1);  // a run that ends late still needs everything
}

Handoff::~Handoff() {
  attempt_.reset();  // it uses the context, too
  collector_.reset();
  context_.sessions_open->fetch_sub(1);  // last: the context may go
}

void Handoff::Begin(SequenceId sequence, size_t target, FrameExtent extent) {
  const absl::Time now = MonotonicNow();
  account_.Begin(now);
  std::unique_ptr<FrameCollector> collector;
  if (context_.codes != nullptr && !spec_.no_store && spec_.codec->base_planes == 0) {
    collector = context_.codes->Collect(spec_.codec, spec_.tenant);
  }
  {
    // End may have come on another thread: then nothing begins.
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    sequence_ = sequence;
    until_ = std::min(spec_.deadline, now + context_.options->handoff_timeout);
    collector_ = std::move(collector);
  }
  if (context_.codes != nullptr && spec_.workflow) context_.codes->Expect(*spec_.workflow, spec_.tenant);
  if (target == kOwnStore) {
    Replay(std::move(extent));
  } else {
    if (context_.codes != nullptr) context_.codes->CountMiss(static_cast<int64_t>(spec_.prompt.size()));
    Start(target, std::move(extent));
  }
  CheckLate();
  if (!spec_.move.ever()) return;
  context_.timer->At(now + spec_.move.after, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckMove();
  });
}

std::shared_ptr<HandoffAttempt> Handoff::Running(int attempt) const {
  absl::MutexLock lock(&mutex_);
  return attempt_ != nullptr && attempt_->number() == attempt ? attempt_ : nullptr;
}

void Handoff::CheckMove() {
  const absl::Time now = MonotonicNow();
  std::shared_ptr<HandoffAttempt> first;
  {
    absl::MutexLock lock(&mutex_);
    if (!over_ && attempt_ != nullptr && attempt_->number() == 1) first = attempt_;
  }
  if (first == nullptr || first->AllHere()) return;
  const absl::Time begin = account_.report().begin;
  const absl::Time move_at = spec_.move.MoveAt(begin, first->last_frame(), spec_.patience);
  if (now < move_at) {
    context_.timer->At(move_at, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->CheckMove();
    });
    return;
  }
  context_.costs->ObserveOvertaken({.name = context_.prefill_pool->Snapshot()[first->target()].name},
                                   spec_.codec->name, spec_.prompt, spec_.cache_salt, begin, now);
  Fail(/*attempt=*/1, absl::AbortedError("another prefill server is expected to be sooner"));
}

void Handoff::CheckLate() {
  const absl::Time now = MonotonicNow();
  std::shared_ptr<HandoffAttempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    attempt = attempt_;
  }
  // Frames that are here wait for the engine, not for the prefill server.
  const bool waiting = attempt != nullptr && !attempt->AllHere();
  const absl::Time begin = account_.report().begin;
  const absl::Time late_at =
      spec_.patience.LateAt(begin, waiting ? attempt->last_frame() : absl::InfiniteFuture());
  absl::Time next = std::min(late_at, now + spec_.patience.silence);
  if (now >= late_at) {
    context_.model->engine().Hedge(sequence_, Late(spec_.patience, now - begin));
    next = now + kHedgeRetry;
  }
  if (next >= until_) return;
  context_.timer->At(next, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckLate();
  });
}

void Handoff::Replay(FrameExtent extent) {
  // What it will have come to is known before it has: its first token may be out before its last call.
  account_.Computed(account_.BeginAttempt(/*asks_server=*/false), /*producer=*/{},
                    static_cast<int64_t>(spec_.prompt.size()));
  if (trace_ != nullptr) trace_->Begin(MonotonicNow());
  const auto replay = std::make_shared<CodeReplay>(
      context_.codes, context_.timer, CodeReplay::Spec{spec_.codec, spec_.tenant, spec_.prompt},
      std::move(extent),
      [self = shared_from_this()](const FrameHeader& header, std::vector<uint8_t> header_bytes,
                                  absl::Span<const uint8_t> payload, std::function<void()> release) {
        self->Deliver(header, std::move(header_bytes), payload, std::move(release));
      });
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    replay_ = replay;
  }
  context_.timer->At(until_, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->OnReplayed(absl::DeadlineExceededError("the stored codes were not read in time"));
  });
  replay->Start([self = shared_from_this()](const absl::Status& status) { self->OnReplayed(status); });
}

void Handoff::OnReplayed(const absl::Status& status) {
  if (status.ok()) return;
  std::shared_ptr<CodeReplay> failed;
  {
    absl::MutexLock lock(&mutex_);
    failed = std::exchange(replay_, nullptr);
    if (failed == nullptr || over_) return;  // it is over, or another one goes on
  }
  failed->Stop();
  GoOn(status);
}

void Handoff::Start(size_t target, FrameExtent extent) {
  std::shared_ptr<HandoffAttempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    attempt = std::make_shared<HandoffAttempt>(context_, spec_, account_.BeginAttempt(), target, until_);
    attempt_ = attempt;
    tried_.push_back(target);
  }
  const int number = attempt->number();
  if (collector_ != nullptr) collector_->Restart(number);
  if (trace_ != nullptr) trace_->Begin(MonotonicNow());
  attempt->Start(
      shared_from_this(), std::move(extent), /*frame_times=*/trace_ != nullptr,
      {.on_event = [self = shared_from_this(), number,
                    target](const v1::RunEvent& e) { self->OnRunEvent(number, target, e); },
       .on_end = [self = shared_from_this(), number](const absl::Status& s) { self->OnRunEnd(number, s); }});
}

void Handoff::OnFrameReceived(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                              absl::Span<const uint8_t> payload, std::function<void()> release) {
  std::shared_ptr<HandoffAttempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    attempt = attempt_;
  }
  if (attempt != nullptr) {
    attempt->FrameReceived(MonotonicNow());
    if (collector_ != nullptr && attempt->ticket() == header.ticket) {
      collector_->Add(attempt->number(), header, payload);
    }
  }
  Deliver(header, std::move(header_bytes), payload, std::move(release));
}

void Handoff::Deliver(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                      absl::Span<const uint8_t> payload, std::function<void()> release) {
  if (trace_ != nullptr) {
    trace_->Received(header, MonotonicNow());
    release = [trace = trace_, number = header.sequence, release = std::move(release)] {
      trace->Applied(number, MonotonicNow());
      release();
    };
  }
  context_.model->engine().ApplyFrame(sequence_, header, std::move(header_bytes), payload,
                                      std::move(release));
}

void Handoff::OnTicketLost(const TicketId& ticket, const absl::Status& reason) {
  int attempt = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt_ == nullptr || attempt_->ticket() != ticket) return;  // an earlier attempt's
    attempt = attempt_->number();
  }
  Fail(attempt, reason);
}

void Handoff::OnCreditRaised(const TicketId& ticket, uint64_t credit) {
  std::shared_ptr<HandoffAttempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt_ == nullptr || attempt_->ticket() != ticket) return;
    attempt = attempt_;
  }
  attempt->RaiseCredit(credit);
}

void Handoff::OnRunEvent(int attempt, size_t target, const v1::RunEvent& event) {
  context_.prefill_pool->Heard(target);
  if (event.has_finished()) {
    if (const auto running = Running(attempt)) running->Announced(event.finished().frames());
  }
  if (!event.has_computed()) return;
  const v1::RunComputed& computed = event.computed();
  context_.prefill_pool->ReportLoad(target, static_cast<int64_t>(computed.waiting_tokens()),
                                    computed.prefill_tokens_per_second());
  // First: a session that finds the account there delivers the trace.
  if (trace_ != nullptr && account_.report().attempts == attempt) trace_->Producer(computed);
  const auto of_prompt = [this](uint64_t tokens) {
    return static_cast<int64_t>(std::min<uint64_t>(tokens, spec_.prompt.size()));
  };
  account_.Computed(attempt,
                    {.queue = computed.queue_seconds(),
                     .prefill = computed.prefill_seconds(),
                     .encode = computed.encode_seconds()},
                    of_prompt(computed.cached_tokens()), of_prompt(computed.stored_tokens()));
}

void Handoff::WhenAccounted(std::function<void(const Handoff&, const Report&)> then) {
  account_.WhenComputed([this, then = std::move(then)](const Report& report) { then(*this, report); });
}

void Handoff::OnRunEnd(int attempt, const absl::Status& status) {
  const std::shared_ptr<HandoffAttempt> running = Running(attempt);
  if (running == nullptr) return;  // a cancelled attempt's end means nothing
  running->RunEnded();
  if (status.ok()) return running->AwaitFrames();
  if (!BlamedWhereItFails(status)) BlameTarget(running->target(), status);
  Fail(attempt, status);
}

void Handoff::Fail(int attempt, const absl::Status& reason) {
  std::shared_ptr<HandoffAttempt> failed;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt_ == nullptr || attempt_->number() != attempt) return;
    if (!upgrading_) failed = std::exchange(attempt_, nullptr);
  }
  if (failed == nullptr) {
    spdlog::info("request={} goes on over the first planes of its cache: {}", spec_.request_id,
                 reason.ToString());
    return EndUpgrade(absl::IsDeadlineExceeded(reason) ? UpgradeOutcome::kLate : UpgradeOutcome::kFailed);
  }
  if (BlamedWhereItFails(reason)) BlameTarget(failed->target(), reason);
  Close(*failed, TicketState::kAbandoned);
  GoOn(reason);
}

void Handoff::GoOn(const absl::Status& reason) {
  if (TryElsewhere(reason)) return;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    over_ = given_up_ = true;
  }
  if (collector_ != nullptr)
    collector_->Close();  // others need the room, and this lives as long as the answer
  context_.model->engine().FallBack(sequence_, reason);
  // In case that the cache was complete already, with first parts.
  context_.model->engine().EndUpgrade(sequence_);
}

bool Handoff::TryElsewhere(const absl::Status& reason) {
  if (MonotonicNow() + kLeastAttempt >= until_) return false;
  std::vector<PlanTarget> targets = context_.prefill_pool->Snapshot();
  // The engine's decoder takes the codes of one encoder.
  NarrowTo({FormatOffer{spec_.codec->name, spec_.codec->artifact_hash}}, &targets);
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return true;  // no longer wanted
    for (const size_t tried : tried_) targets[tried].ready = false;
  }
  const auto plan = MakePlan(context_.options->planner, {spec_.codec->name}, targets, spec_.wanted);
  if (!plan.ok() || !plan->remote()) return false;
  absl::StatusOr<FrameExtent> extent = context_.arena->Reserve(context_.model->HandoffWindow(
      *spec_.codec, static_cast<int64_t>(spec_.prompt.size()), context_.options->handoff_window_bytes));
  if (!extent.ok()) return false;
  context_.metrics->CountReplan(StatusName(reason.code()));
  spdlog::warn("request={} asks {} after a failed handoff: {}", spec_.request_id, targets[plan->target].name,
               reason.ToString());
  context_.model->engine().RestartHandoff(sequence_);
  Start(plan->target, *std::move(extent));
  return true;
}

void Handoff::WriteTrace() const {
  if (context_.options->tracing.handoff_trace_directory.empty()) return;
  // The prefill server's last event may still be in flight.
  context_.timer->At(MonotonicNow() + kTraceDelay,
                     [trace = trace_, directory = context_.options->tracing.handoff_trace_directory,
                      number = context_.handoff_traces->fetch_add(1) % kMaxTraces, id = spec_.request_id,
                      format = spec_.codec->name] {
                       const std::string path = absl::StrFormat("%s/handoff-%03d.json", directory, number);
                       const absl::Status written = trace->WriteTo(path, id, format);
                       if (!written.ok()) spdlog::warn("request={} {}", id, std::string(written.message()));
                     });
}

void Handoff::Rejected(const absl::Status& reason) {
  std::shared_ptr<HandoffAttempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    attempt = attempt_;  // none is left of what failed before the engine gave up
  }
  if (attempt != nullptr && absl::IsDataLoss(reason)) BlameTarget(attempt->target(), reason);
}

void Handoff::End(TicketState end) {
  std::shared_ptr<HandoffAttempt> last;
  std::shared_ptr<CodeReplay> replay;
  const bool begins_upgrade = end == TicketState::kCompleted && spec_.codec->base_planes > 0;
  bool was_over = false, given_up = false;
  {
    absl::MutexLock lock(&mutex_);
    was_over = std::exchange(over_, true);
    given_up = given_up_;
    if (!was_over && !begins_upgrade) {
      last = std::exchange(attempt_, nullptr);
      replay = std::exchange(replay_, nullptr);
    }
  }
  if (begins_upgrade && (!was_over || given_up)) return BeginUpgrade();
  if (was_over) return EndUpgrade(UpgradeOutcome::kEnded);
  if (replay != nullptr) {
    replay->Stop();
    account_.Closed(/*usage=*/{}, MonotonicNow());
  }
  if (last != nullptr && end == TicketState::kCompleted) {
    context_.prefill_pool->ReportRunSuccess(last->target());
  }
  if (last != nullptr) Close(*last, end);
  const bool completed = end == TicketState::kCompleted;
  const bool keeps = collector_ != nullptr && last != nullptr && completed;
  if (collector_ != nullptr && !keeps) collector_->Close();
  const bool remembers = context_.codes != nullptr && spec_.workflow && !spec_.no_store && completed;
  if (!keeps && !remembers) return;
  // Not in the engine's time.
  context_.timer->At(MonotonicNow(), [self = shared_from_this(), keeps, remembers] {
    const Spec& spec = self->spec_;
    if (keeps) self->collector_->Keep(spec.prompt);
    if (remembers) self->context_.codes->Remember(*spec.workflow, *spec.codec, spec.tenant, spec.prompt);
  });
}

void Handoff::BeginUpgrade() {
  std::shared_ptr<HandoffAttempt> attempt;
  std::optional<UpgradeOutcome> outcome;
  {
    absl::MutexLock lock(&mutex_);
    upgrading_ = true;
    attempt = attempt_;
    outcome = early_upgrade_;
  }
  if (attempt == nullptr) {
    outcome = UpgradeOutcome::kFailed;  // between the last of the first parts and the first token
  } else {
    account_.Closed(attempt->BaseReceived(), MonotonicNow());
    context_.prefill_pool->ReportRunSuccess(attempt->target());
  }
  if (outcome) EndUpgrade(*outcome);
}

void Handoff::EndUpgrade(UpgradeOutcome outcome) {
  std::shared_ptr<HandoffAttempt> last;
  {
    absl::MutexLock lock(&mutex_);
    if (!std::exchange(upgrading_, false)) return;
    last = std::exchange(attempt_, nullptr);
  }
  context_.metrics->CountUpgrade(outcome);
  const bool complete = outcome == UpgradeOutcome::kComplete;
  if (last != nullptr) last->Close(complete ? TicketState::kCompleted : TicketState::kAbandoned);
  if (!complete) context_.model->engine().EndUpgrade(sequence_);
}

void Handoff::Upgraded(const absl::Status& status, int64_t completion_tokens) {
  const UpgradeOutcome outcome = status.ok() ? UpgradeOutcome::kComplete : UpgradeOutcome::kFailed;
  if (status.ok()) {
    context_.metrics->ObserveUpgrade(completion_tokens);
  } else {
    spdlog::warn("request={} goes on over the first planes of its cache: {}", spec_.request_id,
                 status.ToString());
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!upgrading_) early_upgrade_ = outcome;
  }
  EndUpgrade(outcome);
}

void Handoff::Close(HandoffAttempt& attempt, TicketState end) {
  if (const auto usage = attempt.Close(end)) account_.Closed(*usage, MonotonicNow());
}

void Handoff::BlameTarget(size_t target, const absl::Status& status) {
  // If the client's own deadline came first, the prefill server is not to blame.
  if (absl::IsDeadlineExceeded(status) && MonotonicNow() + absl::Milliseconds(50) >= spec_.deadline) return;
  context_.prefill_pool->ReportRunFailure(target, status);
}

}  // namespace aludel
