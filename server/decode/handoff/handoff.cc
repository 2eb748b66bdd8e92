#include "server/decode/handoff/handoff.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/random.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// If nothing is received for this long after the run's end, the rest was lost.
absl::Duration ReceivePatience(absl::Duration handoff_timeout) {
  return std::clamp(handoff_timeout / 4, absl::Milliseconds(250), absl::Seconds(2));
}
constexpr uint32_t kMaxTraces = 256;
constexpr absl::Duration kReceiveLook = absl::Milliseconds(125);
// A late handoff whose hedge found no place asks for one again.
constexpr absl::Duration kHedgeRetry = absl::Milliseconds(100);
constexpr absl::Duration kRunGrace = absl::Seconds(1);
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
  context_.sessions_open->fetch_sub(1);  // last: the context may go
}

void Handoff::Begin(SequenceId sequence, size_t target, FrameExtent extent) {
  const absl::Time now = MonotonicNow();
  sequence_ = sequence;
  until_ = std::min(spec_.deadline, now + context_.options->handoff_timeout);
  {
    absl::MutexLock lock(&mutex_);
    report_.begin = now;
  }
  Start(target, std::move(extent));
  CheckLate();
  if (spec_.move_after == absl::InfiniteDuration()) return;
  context_.timer->At(now + spec_.move_after, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckMove();
  });
}

void Handoff::CheckMove() {
  const absl::Time now = MonotonicNow();
  absl::Time begin;
  absl::Time move_at = now;
  size_t target = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || attempt_.number != 1 || AllHere()) return;
    begin = report_.begin;
    target = attempt_.target;
    const bool coming = attempt_.last_frame != absl::InfiniteFuture();
    if (coming) move_at = std::min(attempt_.last_frame + spec_.move_silence, begin + spec_.patience.whole);
  }
  if (now < move_at) {
    context_.timer->At(move_at, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->CheckMove();
    });
    return;
  }
  context_.costs->ObserveOvertaken({.name = context_.prefill_pool->Snapshot()[target].name},
                                   spec_.codec->name, spec_.prompt, spec_.cache_salt, begin, now);
  Fail(/*attempt=*/1, absl::AbortedError("another prefill server is expected to be sooner"));
}

bool Handoff::AllHere() const {
  const uint64_t announced = attempt_.announced_frames;
  return announced > 0 && context_.receiver->Received(attempt_.ticket).value_or(announced) >= announced;
}

void Handoff::CheckLate() {
  const absl::Time now = MonotonicNow();
  absl::Time last_frame;
  absl::Duration taken;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    // Frames that are here wait for the engine, not for the prefill server.
    last_frame = AllHere() ? absl::InfiniteFuture() : attempt_.last_frame;
    taken = now - report_.begin;
  }
  const absl::Time late_at = spec_.patience.LateAt(now - taken, last_frame);
  absl::Time next = std::min(late_at, now + spec_.patience.silence);
  if (now >= late_at) {
    context_.model->engine().Hedge(sequence_, Late(spec_.patience, taken));
    next = now + kHedgeRetry;
  }
  if (next >= until_) return;
  context_.timer->At(next, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckLate();
  });
}

v1::RunRequest Handoff::MakeRun(const TicketId& id, const std::string& frame_key) const {
  v1::RunRequest run;
  run.set_request_id(spec_.request_id);
  run.set_frame_times(trace_ != nullptr);
  run.set_cache_salt(spec_.tenant);
  run.mutable_prompt()->Add(spec_.prompt.begin(), spec_.prompt.end());
  if (spec_.max_staleness_ms) run.set_max_staleness_ms(*spec_.max_staleness_ms);
  v1::Ticket* ticket = run.mutable_ticket();
  ticket->set_id(std::string(id.begin(), id.end()));
  ticket->set_epoch(context_.receiver->epoch());
  ticket->set_receiver_address(context_.receiver_address);
  ticket->set_frame_key(frame_key);
  ticket->mutable_format()->set_name(spec_.codec->name);
  ticket->mutable_format()->set_artifact_hash(spec_.codec->artifact_hash);
  return run;
}

void Handoff::Start(size_t target, FrameExtent extent) {
  const TicketId ticket = RandomTicketId();
  std::string frame_key;
  std::shared_ptr<const FrameCipher> cipher;
  if (context_.options->encrypt_frames) {
    const FrameCipher::Key key = RandomFrameKey();
    frame_key.assign(key.begin(), key.end());
    cipher = std::make_shared<const FrameCipher>(key);
  }
  KvReceiver* const receiver = context_.receiver;
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    number = ++report_.attempts;
    attempt_ = {.number = number, .target = target, .ticket = ticket};
    attempt_.grants = std::make_shared<CreditGrants>(
        &context_.prefill_pool->stub(target), ticket, until_,
        [self = shared_from_this(), number](const absl::Status& lost) { self->Fail(number, lost); });
    attempt_.deadline_timer = context_.timer->At(until_, [receiver] { receiver->Reap(); });
    tried_.push_back(target);
  }
  context_.prefill_pool->BeginRun(target, static_cast<int64_t>(spec_.prompt.size()));
  const size_t bound = context_.model->HandoffBytesBound(*spec_.codec, spec_.prompt.size());
  const size_t window = extent.bytes().size();
  std::optional<uint64_t> credit;
  // The last quarter is what the ring's end may waste: HandoffWindow leaves room for a step there.
  if (window < bound) credit = window / 4 * 3;
  v1::RunRequest run = MakeRun(ticket, frame_key);
  if (credit) {
    run.mutable_ticket()->set_window_bytes(window);
    run.mutable_ticket()->set_credit_bytes(*credit);
  }
  if (trace_ != nullptr) trace_->Begin(MonotonicNow());
  receiver->Open({.id = ticket,
                  .deadline = until_,
                  .codec = spec_.codec,
                  .tokens = static_cast<uint32_t>(spec_.prompt.size()),
                  .extent = std::move(extent),
                  .credit = credit,
                  .cipher = std::move(cipher),
                  .owner = weak_from_this()});
  std::shared_ptr<RunCall> call = RunCall::Start(
      context_.prefill_pool->stub(target), std::move(run), until_,
      {.on_event = [self = shared_from_this(), number,
                    target](const v1::RunEvent& e) { self->OnRunEvent(number, target, e); },
       .on_end = [self = shared_from_this(), number](const absl::Status& s) { self->OnRunEnd(number, s); }},
      spec_.traceparent);
  bool over = false;
  {
    absl::MutexLock lock(&mutex_);
    over = over_ || attempt_.number != number;
    if (!over) attempt_.run = call;
  }
  if (!over) return;
  // It ended meanwhile, perhaps before there was a ticket to close or a run to cancel.
  receiver->Close(ticket, TicketState::kAbandoned);
  call->Cancel();
}

void Handoff::OnFrameReceived(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                              absl::Span<const uint8_t> payload, std::function<void()> release) {
  if (trace_ != nullptr) {
    trace_->Received(header, MonotonicNow());
    release = [trace = trace_, number = header.sequence, release = std::move(release)] {
      trace->Applied(number, MonotonicNow());
      release();
    };
  }
  {
    absl::MutexLock lock(&mutex_);
    attempt_.last_frame = MonotonicNow();
  }
  context_.model->engine().ApplyFrame(sequence_, header, std::move(header_bytes), payload,
                                      std::move(release));
}

void Handoff::OnTicketLost(const TicketId& ticket, const absl::Status& reason) {
  int attempt = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt_.ticket != ticket) return;  // an earlier attempt's
    attempt = attempt_.number;
  }
  Fail(attempt, reason);
}

void Handoff::OnCreditRaised(const TicketId& ticket, uint64_t credit) {
  std::shared_ptr<CreditGrants> grants;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || attempt_.ticket != ticket) return;
    grants = attempt_.grants;
  }
  if (grants != nullptr) grants->Raise(credit);
}

void Handoff::OnRunEvent(int attempt, size_t target, const v1::RunEvent& event) {
  context_.prefill_pool->Heard(target);
  if (event.has_computed()) {
    context_.prefill_pool->ReportLoad(target, static_cast<int64_t>(event.computed().waiting_tokens()),
                                      event.computed().prefill_tokens_per_second());
  }
  std::function<void(const Handoff&, const Report&)> then;
  Report report;
  {
    absl::MutexLock lock(&mutex_);
    if (report_.attempts != attempt) return;
    if (event.has_finished()) attempt_.announced_frames = event.finished().frames();
    if (!event.has_computed()) return;
    if (trace_ != nullptr) trace_->Producer(event.computed());
    report_.producer = ProducerSeconds{.queue = event.computed().queue_seconds(),
                                       .prefill = event.computed().prefill_seconds(),
                                       .encode = event.computed().encode_seconds()};
    then = std::exchange(when_accounted_, nullptr);
    report = report_;
  }
  if (then) then(*this, report);
}

void Handoff::WhenAccounted(std::function<void(const Handoff&, const Report&)> then) {
  Report report;
  {
    absl::MutexLock lock(&mutex_);
    if (!report_.producer) {
      when_accounted_ = std::move(then);
      return;
    }
    report = report_;
  }
  then(*this, report);
}

void Handoff::OnRunEnd(int attempt, const absl::Status& status) {
  size_t target = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || attempt_.number != attempt) return;  // a cancelled attempt's end means nothing
    attempt_.run.reset();
    target = attempt_.target;
  }
  // A run that ended well may still have frames on the link.
  if (status.ok()) return CheckReceived(attempt, /*received_before=*/0, absl::ZeroDuration());
  BlameTarget(target, status);
  Fail(attempt, status);
}

void Handoff::CheckReceived(int attempt, uint64_t received_before, absl::Duration idle) {
  uint64_t announced = 0;
  std::optional<uint64_t> received;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || attempt_.number != attempt) return;
    announced = attempt_.announced_frames;
    received = context_.receiver->Received(attempt_.ticket);
    if (!received || *received >= announced) return;
    idle = *received == received_before ? idle + kReceiveLook : absl::ZeroDuration();
    if (idle <= ReceivePatience(context_.options->handoff_timeout)) {
      attempt_.received_timer = context_.timer->At(MonotonicNow() + kReceiveLook,
                                                   [weak = weak_from_this(), attempt, received, idle] {
                                                     if (const auto self = weak.lock())
                                                       self->CheckReceived(attempt, *received, idle);
                                                   });
      return;
    }
  }
  Fail(attempt, absl::DataLossError(
                    absl::StrFormat("%d of %d frames have arrived and no more come", *received, announced)));
}

void Handoff::Fail(int attempt, const absl::Status& reason) {
  Attempt failed;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || attempt_.number != attempt) return;
    failed = std::exchange(attempt_, {});
  }
  if (absl::IsDeadlineExceeded(reason)) BlameTarget(failed.target, reason);
  Release(std::move(failed), TicketState::kAbandoned);
  if (TryElsewhere(reason)) return;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    over_ = true;
  }
  context_.model->engine().FallBack(sequence_, reason);
}

bool Handoff::TryElsewhere(const absl::Status& reason) {
  if (MonotonicNow() + kReceiveLook >= until_) return false;
  std::vector<PlanTarget> targets = context_.prefill_pool->Snapshot();
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return true;  // no longer wanted
    for (const size_t tried : tried_) targets[tried].ready = false;
  }
  const auto plan = MakePlan(context_.options->planner, FormatNames(context_), targets, spec_.wanted);
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

void Handoff::End(TicketState end) {
  Attempt last;
  {
    absl::MutexLock lock(&mutex_);
    if (!std::exchange(over_, true)) last = std::exchange(attempt_, {});
  }
  Release(std::move(last), end);
}

void Handoff::Release(Attempt attempt, TicketState end) {
  if (attempt.number == 0) return;
  context_.prefill_pool->EndRun(attempt.target, static_cast<int64_t>(spec_.prompt.size()));
  if (attempt.grants != nullptr) attempt.grants->Stop();
  context_.timer->Cancel(attempt.deadline_timer);
  context_.timer->Cancel(attempt.received_timer);
  if (attempt.run != nullptr && end == TicketState::kCompleted) {
    // All frames are here before the prefill server has reported its end: give it time to.
    context_.timer->At(MonotonicNow() + kRunGrace, [weak = std::weak_ptr<RunCall>(attempt.run)] {
      if (const auto run = weak.lock()) run->Cancel();
    });
  } else if (attempt.run != nullptr) {
    attempt.run->Cancel();
  }
  const KvReceiver::Usage usage = context_.receiver->Close(attempt.ticket, end);
  absl::MutexLock lock(&mutex_);
  report_.usage = usage;
  report_.end = MonotonicNow();
}

void Handoff::BlameTarget(size_t target, const absl::Status& status) {
  // If the client's own deadline came first, the prefill server is not to blame.
  if (absl::IsDeadlineExceeded(status) && MonotonicNow() + absl::Milliseconds(50) >= spec_.deadline) return;
  context_.prefill_pool->ReportRunFailure(target, status);
}

Handoff::Report Handoff::report() const {
  absl::MutexLock lock(&mutex_);
  return report_;
}

}  // namespace aludel
