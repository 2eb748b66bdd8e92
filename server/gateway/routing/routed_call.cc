#include "server/gateway/routing/routed_call.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aludel/v1/load.pb.h"
#include "server/rpc/hopeless.h"
#include "server/rpc/load_metadata.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// Servers tried for one request.
constexpr size_t kMaxAttempts = 3;
constexpr double kMaxRetryAfterSeconds = 600;
// A cut answer for which no other server is ready, or has room, asks again so often.
constexpr absl::Duration kRescueLook = absl::Milliseconds(100);

std::string Describe(const grpc::Status& status) {
  return absl::StrCat("code ", static_cast<int>(status.error_code()), ": ", status.error_message());
}

std::string ToMetadata(const PrefixKeys& keys) {
  v1::PromptPrefixes prefixes;
  prefixes.mutable_keys()->Add(keys.keys.begin(), keys.keys.end());
  prefixes.set_tokens(static_cast<uint64_t>(keys.tokens));
  return prefixes.SerializeAsString();
}

// As the waiting room refuses: with the seconds until a request may be in time.
grpc::Status TooLate(absl::Duration late) {
  const double seconds = std::clamp(std::ceil(absl::ToDoubleSeconds(late)), 1.0, kMaxRetryAfterSeconds);
  return {grpc::StatusCode::RESOURCE_EXHAUSTED,
          absl::StrFormat(
              "overloaded: the first token is predicted %.1f s later than the request's deadline, or this "
              "model's max_ttft_ms, allows",
              absl::ToDoubleSeconds(late)),
          absl::StrCat(static_cast<int>(seconds))};
}

grpc::Status DeadlineHasPassed() {
  return {grpc::StatusCode::DEADLINE_EXCEEDED, "the request's deadline has passed"};
}

grpc::Status ClientHasGone() { return {grpc::StatusCode::CANCELLED, "the client has gone"}; }

}  // namespace

RoutedCall::RoutedCall(const Routing& routing, RoutedRequest request, PrefixKeys keys,
                       std::shared_ptr<GenerateObserver> observer)
    : routing_(routing),
      model_(std::move(request.model)),
      request_(std::move(request.message)),
      deadline_(request.deadline),
      relay_(std::move(observer), std::max<uint32_t>(1, request_.sampling().choices())),
      traceparent_(std::move(request.traceparent)),
      keys_(std::move(keys)),
      prefixes_(routing.by_prefix && !request_.no_store() ? ToMetadata(keys_) : ""),
      visit_{.model = model_,
             .tenant = std::move(request.tenant),
             .weight = request.tenant_weight,
             .tokens = request_.prompt_size(),
             .places = static_cast<int>(std::max<uint32_t>(1, request_.sampling().choices())),
             .priority = request_.priority(),
             .deadline = deadline_} {}

void RoutedCall::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (attempt_ != nullptr) attempt_->Cancel();
  }
  if (routing_.room->Leave(visit_)) End(ClientHasGone());
}

bool RoutedCall::cancelled() {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void RoutedCall::Admitted() {
  admitted_ = true;
  Try(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                   absl::StrCat("no decode server for model \"", model_, "\" is ready")));
}

void RoutedCall::Try(const grpc::Status& otherwise) {
  DecodeTargets::Picked picked;
  if (tried_.size() < kMaxAttempts) {
    const bool again = std::exchange(picked_, true);
    DecodeTargets::Wanted wanted = {.model = model_,
                                    .keys = keys_,
                                    .tried = tried_,
                                    .numerics = numerics_,
                                    .adapter = request_.adapter(),
                                    .again = again,
                                    .places = visit_.places};
    if (TurnedAwayOften()) wanted.among = turned_away_by_;
    // One that a server has failed is not refused for being late: it was taken.
    if (tried_.empty() && !IsCut()) {
      wanted.time_left = deadline_ - MonotonicNow();
      if (*wanted.time_left <= absl::ZeroDuration()) return End(DeadlineHasPassed());
    }
    picked = routing_.targets->Pick(wanted);
    if (picked.late) return End(TooLate(*picked.late));
  }
  if (picked.target == nullptr) return TryLater(otherwise);
  tried_.push_back(picked.target.get());
  asked_.insert(picked.target);
  cached_tokens_ = picked.cached_tokens;
  if (request_.no_store())
    picked.target->NotTaken(keys_, cached_tokens_);  // its cache gets nothing of the prompt
  heard_ = false;
  if (TurnedAwayOften() || IsCut()) picked.wait_limit.reset();
  auto* attempt =
      new GenerateAttempt(shared_from_this(), picked, deadline_, traceparent_, prefixes_, routing_.events);
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    attempt_ = attempt;
    cancelled = cancelled_;
  }
  if (cancelled) attempt->Cancel();
  attempt->Start(&request_);
}

void RoutedCall::OnEvent(const v1::GenerateEvent& event) {
  heard_ = true;
  switch (relay_.Hear(event)) {
    case AnswerRelay::Verdict::kGoOn:
      return;
    case AnswerRelay::Verdict::kUnwanted:
      return Cancel();
    case AnswerRelay::Verdict::kDiverged:
      absl::MutexLock lock(&mutex_);
      if (attempt_ != nullptr) attempt_->Cancel();
  }
}

void RoutedCall::OnAttemptDone(DecodeTarget* target, grpc::Status status) {
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    attempt_ = nullptr;
    cancelled = cancelled_;
  }
  // A server that shuts down cancels its calls: not the client's doing, so the call may move on. One whose
  // answer diverged was cancelled from here: it is well, and others may be asking it.
  if (status.error_code() == grpc::StatusCode::CANCELLED && !cancelled && !relay_.diverged()) {
    status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the decode server has given the call up");
  }
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::RESOURCE_EXHAUSTED && status.error_details() == kTurnedAway) {
    target->TurnedAway(keys_, cached_tokens_);
    if (!cancelled && MonotonicNow() < deadline_ && !TurnedAwayOften()) {
      turned_away_by_.push_back(target);
      tried_.pop_back();  // with what it has reported it may be the best one still
      return Try(status);
    }
  } else if (code != grpc::StatusCode::OK && !heard_) {
    target->NotTaken(keys_, cached_tokens_);  // its cache has nothing of the prompt
  }
  found_full_ |= code == grpc::StatusCode::RESOURCE_EXHAUSTED && status.error_details() != kHopeless;
  if (code == grpc::StatusCode::UNAVAILABLE) {
    target->Down(Describe(status));
    routing_.prober->ProbeSoon(target);
    gone_.push_back(target);
  }
  if (relay_.diverged() && !cancelled) {
    return End(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                            "the decode server was lost, and another one gives another answer"));
  }
  // Another server may be up, have room now, or be larger.
  const bool elsewhere = code == grpc::StatusCode::UNAVAILABLE ||
                         code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                         code == grpc::StatusCode::FAILED_PRECONDITION;
  if (!elsewhere || cancelled || MonotonicNow() >= deadline_) return End(status);
  if (!relay_.committed()) return Try(IsCut() ? lost_ : status);
  if (relay_.whole()) return End(status);
  // In the midst of an answer only a server that is gone is a reason to ask another one: of one that
  // refuses to go on, the reader is too slow. One that repeats may also have had no room.
  if (code != grpc::StatusCode::UNAVAILABLE && !relay_.repeating()) return End(status);
  GoOnElsewhere(*target, status);
}

void RoutedCall::GoOnElsewhere(const DecodeTarget& target, const grpc::Status& status) {
  if (!IsCut()) {
    rescue_until_ = std::min(deadline_, MonotonicNow() + routing_.rescue);
    lost_ = status;
    spdlog::warn("request={} decode server {} was lost in the midst of its answer: {}", request_.request_id(),
                 target.name(), status.error_message());
  }
  if (relay_.Restart()) {
    outcome_ = "restarted";
  } else {
    outcome_ = "continued";
    if (numerics_.empty()) numerics_ = target.numerics(request_.adapter());
    if (numerics_.empty()) return End(status);
    relay_.Repeat(&request_);
  }
  Try(lost_);
}

void RoutedCall::TryLater(const grpc::Status& otherwise) {
  if (WaitsAgain(otherwise)) return;
  if (MonotonicNow() >= rescue_until_ ||
      !routing_.targets->HasOther(model_, gone_, numerics_, request_.adapter()))
    return End(otherwise);
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kRescueLook),
              [self = shared_from_this(), otherwise](bool) { self->TryAgain(otherwise); });
}

bool RoutedCall::WaitsAgain(const grpc::Status& refusal) {
  if (!found_full_ || refusal.error_details() == kHopeless || relay_.committed() || IsCut()) return false;
  // Before it may be admitted, on another thread.
  admitted_ = false;
  found_full_ = false;
  turned_away_by_.clear();  // their reports are old then
  tried_ = gone_;
  const auto self = shared_from_this();  // which may end meanwhile
  if (!routing_.room->Return(&visit_, self)) {
    admitted_ = true;
    return false;
  }
  // A client that left before it waited again was not taken from the room.
  if (cancelled() && routing_.room->Leave(visit_)) End(ClientHasGone());
  return true;
}

void RoutedCall::TryAgain(const grpc::Status& otherwise) {
  alarm_.reset();  // it holds this call by its callback
  if (cancelled()) return End(ClientHasGone());
  tried_ = gone_;  // those are not asked twice: what ended them may have been this request
  Try(otherwise);
}

void RoutedCall::End(const grpc::Status& status) {
  if (IsCut()) {
    routing_.cut_answers->Add({{"model", model_}, {"outcome", relay_.whole() ? outcome_ : "lost"}});
  }
  {
    const WorkClock::Work work(routing_.events);
    relay_.End(status);
  }
  if (admitted_) routing_.room->Ended(visit_, status.ok());
  routing_.calls->End();
}

}  // namespace aludel
