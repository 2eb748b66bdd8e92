#include "server/decode/handoff/handoff_attempt.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/decode/handoff/run_request.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/random.h"
#include "server/rpc/deadline.h"

namespace aludel {
namespace {

// If nothing is received for this long after the run's end, the rest was lost.
absl::Duration ReceivePatience(absl::Duration handoff_timeout) {
  return std::clamp(handoff_timeout / 4, absl::Milliseconds(250), absl::Seconds(2));
}
constexpr absl::Duration kReceiveLook = absl::Milliseconds(125);
constexpr absl::Duration kRunGrace = absl::Seconds(1);

}  // namespace

HandoffAttempt::HandoffAttempt(const DecodeContext& context, const HandoffSpec& spec, int number,
                               size_t target, absl::Time until)
    : context_(context),
      spec_(spec),
      number_(number),
      target_(target),
      until_(until),
      ticket_(RandomTicketId()) {}

void HandoffAttempt::Start(const std::shared_ptr<TicketOwner>& owner, FrameExtent extent, bool frame_times,
                           RunCall::Callbacks callbacks) {
  KvReceiver* const receiver = context_.receiver;
  v1::Prefill::Stub& stub = context_.prefill_pool->stub(target_);
  const auto tokens = static_cast<int64_t>(spec_.prompt.size());
  double expected_bytes =
      context_.costs->BytesPerToken(spec_.codec->name, tokens) * static_cast<double>(tokens) +
      context_.costs->UpgradeBytes(spec_.codec->name, tokens);
  if (expected_bytes == 0) {  // none has come yet
    expected_bytes =
        static_cast<double>(context_.model->HandoffBytesBound(*spec_.codec, spec_.prompt.size()));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    owner_ = owner;
    forgotten_ = context_.costs->forgotten();
    link_use_ = context_.prefill_pool->BeginRun(target_, tokens, expected_bytes);
    asked_tokens_ = tokens;
    grants_ = std::make_shared<CreditGrants>(
        &stub, ticket_, until_,
        [owner, ticket = ticket_](const absl::Status& lost) { owner->OnTicketLost(ticket, lost); });
    deadline_timer_ = context_.timer->At(until_, [receiver] { receiver->Reap(); });
  }
  TicketTerms terms{.id = ticket_,
                    .epoch = receiver->epoch(),
                    .receiver_address = context_.receiver_address,
                    .window_bytes = extent.bytes().size()};
  terms.credit_bytes =
      FirstCredit(terms.window_bytes, context_.model->HandoffBytesBound(*spec_.codec, spec_.prompt.size()));
  std::shared_ptr<const FrameCipher> cipher;
  if (context_.options->encrypt_frames) {
    const FrameCipher::Key key = RandomFrameKey();
    terms.frame_key.assign(key.begin(), key.end());
    cipher = std::make_shared<const FrameCipher>(key);
  }
  receiver->Open({.id = ticket_,
                  .deadline = until_,
                  .codec = spec_.codec,
                  .tokens = static_cast<uint32_t>(spec_.prompt.size()),
                  .extent = std::move(extent),
                  .credit = terms.credit_bytes,
                  .cipher = std::move(cipher),
                  .owner = owner});
  std::shared_ptr<RunCall> call = RunCall::Start(stub, MakeRunRequest(spec_, terms, frame_times), until_,
                                                 std::move(callbacks), spec_.traceparent);
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_) {
      run_ = std::move(call);
      return;
    }
  }
  // It was closed meanwhile, perhaps before there was a ticket to close or a run to cancel.
  receiver->Close(ticket_, TicketState::kAbandoned);
  call->Cancel();
}

std::optional<TicketUsage> HandoffAttempt::Close(TicketState end) {
  std::shared_ptr<RunCall> run;
  std::shared_ptr<CreditGrants> grants;
  Timer::Id deadline_timer = 0, frames_timer = 0;
  SiteLinks::Use link_use;
  int64_t asked_tokens = 0;
  uint64_t forgotten = 0;
  bool base_received = false;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return std::nullopt;
    asked_tokens = asked_tokens_;
    forgotten = forgotten_;
    base_received = base_received_;
    run = std::move(run_);
    grants = std::move(grants_);
    link_use = std::move(link_use_);
    deadline_timer = deadline_timer_;
    frames_timer = frames_timer_;
  }
  if (grants == nullptr) return TicketUsage{};  // it was never started
  grants->Stop();
  context_.timer->Cancel(deadline_timer);
  context_.timer->Cancel(frames_timer);
  if (run != nullptr && end == TicketState::kCompleted) {
    // All frames are here before the prefill server has reported its end: give it time to.
    context_.timer->At(MonotonicNow() + kRunGrace, [weak = std::weak_ptr<RunCall>(run)] {
      if (const auto late = weak.lock()) late->Cancel();
    });
  } else if (run != nullptr) {
    run->Cancel();
  }
  const TicketUsage usage = context_.receiver->Close(ticket_, end);
  // Of one that is given up more may be on its way than has come; of second parts, whose answer is often over first, little.
  const bool completed = end == TicketState::kCompleted;
  const auto came = static_cast<double>(usage.bytes + usage.upgrade_bytes);
  const double bytes = completed || base_received ? came : std::max(came, link_use.expected_bytes);
  context_.prefill_pool->EndRun(target_, asked_tokens, link_use, bytes);
  // Of an artifact that is not asked for any more nothing is learned.
  if (completed && usage.upgrade_bytes > 0 && context_.costs->forgotten() == forgotten) {
    context_.costs->ObserveUpgrade(spec_.codec->name, static_cast<int64_t>(spec_.prompt.size()),
                                   usage.upgrade_bytes);
  }
  return usage;
}

TicketUsage HandoffAttempt::BaseReceived() {
  int64_t computed = 0;
  {
    absl::MutexLock lock(&mutex_);
    base_received_ = true;
    if (!closed_) computed = std::exchange(asked_tokens_, 0);
  }
  context_.prefill_pool->Computed(target_, computed);
  return context_.receiver->UsageOf(ticket_).value_or(TicketUsage{});
}

void HandoffAttempt::FrameReceived(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  last_frame_ = now;
}

void HandoffAttempt::RaiseCredit(uint64_t credit) {
  std::shared_ptr<CreditGrants> grants;
  {
    absl::MutexLock lock(&mutex_);
    grants = grants_;
  }
  if (grants != nullptr) grants->Raise(credit);
}

void HandoffAttempt::Announced(uint64_t frames) {
  absl::MutexLock lock(&mutex_);
  announced_ = frames;
}

void HandoffAttempt::RunEnded() {
  absl::MutexLock lock(&mutex_);
  run_.reset();
}

void HandoffAttempt::AwaitFrames(uint64_t received_before, absl::Duration idle) {
  const std::optional<KvReceiver::Arrivals> arrivals = context_.receiver->ArrivalsOf(ticket_);
  std::shared_ptr<TicketOwner> owner;
  uint64_t announced = 0;
  {
    absl::MutexLock lock(&mutex_);
    announced = announced_;
    if (closed_ || !arrivals || arrivals->frames >= announced) return;
    // One frame may take long over a slow link. Its connection's end, or the deadline, ends it.
    const bool idles = arrivals->frames == received_before && !arrivals->more_under_way;
    idle = idles ? idle + kReceiveLook : absl::ZeroDuration();
    if (idle <= ReceivePatience(context_.options->handoff_timeout)) {
      frames_timer_ = context_.timer->At(MonotonicNow() + kReceiveLook,
                                         [weak = weak_from_this(), owner = owner_, arrivals, idle] {
                                           // The server's context lives as long as there are owners.
                                           const auto alive = owner.lock();
                                           const auto self = weak.lock();
                                           if (alive != nullptr && self != nullptr)
                                             self->AwaitFrames(arrivals->frames, idle);
                                         });
      return;
    }
    owner = owner_.lock();
  }
  if (owner == nullptr) return;
  owner->OnTicketLost(ticket_,
                      absl::DataLossError(absl::StrFormat("%d of %d frames have arrived and no more come",
                                                          arrivals->frames, announced)));
}

absl::Time HandoffAttempt::last_frame() const {
  absl::MutexLock lock(&mutex_);
  return last_frame_;
}

bool HandoffAttempt::AllHere() const {
  uint64_t announced = 0;
  {
    absl::MutexLock lock(&mutex_);
    announced = announced_;
  }
  const std::optional<KvReceiver::Arrivals> arrivals = context_.receiver->ArrivalsOf(ticket_);
  if (announced > 0) return !arrivals || arrivals->frames >= announced;
  // Second parts leave behind the last of the first ones.
  const std::optional<TicketUsage> usage = context_.receiver->UsageOf(ticket_);
  return usage && usage->upgrade_bytes > 0;
}

}  // namespace aludel
