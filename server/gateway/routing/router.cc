#include "server/gateway/routing/router.h"

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/observe/trace_context.h"
#include "server/rpc/deadline.h"
#include "server/rpc/hopeless.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// Servers tried for one request.
constexpr size_t kMaxAttempts = 3;
// A cut answer for which no other server is ready, or has room, asks again so often.
constexpr absl::Duration kRescueLook = absl::Milliseconds(100);
constexpr uint64_t kAnyAgeMs = uint64_t{1} << 40;

std::string Describe(const grpc::Status& status) {
  return absl::StrCat("code ", static_cast<int>(status.error_code()), ": ", status.error_message());
}

bool IsExact(const v1::Started& started) { return started.plan() == "local" || started.plan() == "fallback"; }

// Whether answers of the two, given the same numerics, are over the same cache.
bool SamePlan(const v1::Started& a, const v1::Started& b) {
  if (IsExact(a) || IsExact(b)) return IsExact(a) && IsExact(b);
  return a.plan() == b.plan() && a.format() == b.format();
}

// Has the answer computed over a cache like that of `started`.
void AskForPlan(const v1::Started& started, v1::GenerateRequest* request) {
  request->clear_format();
  request->set_fidelity(v1::FIDELITY_EXACT);
  if (IsExact(started)) return;
  request->clear_fidelity();
  request->set_format(started.format());
  // With a bound on their age, codes come from a prefill server and not from the decode server's own cache.
  if (started.plan() == "remote" && !request->has_max_staleness_ms())
    request->set_max_staleness_ms(kAnyAgeMs);
}

}  // namespace

// One request over its attempts. Owned by the running attempt; the exchange holds a weak reference to
// cancel it.
class Router::Call : public GenerateCall,
                     public WaitingRoom::Guest,
                     public std::enable_shared_from_this<Router::Call> {
 public:
  Call(Router* router, Request request, std::shared_ptr<GenerateObserver> observer)
      : router_(router),
        model_(std::move(request.model)),
        request_(std::move(request.message)),
        deadline_(request.deadline),
        observer_(std::move(observer)),
        traceparent_(std::move(request.traceparent)),
        choices_(std::max<uint32_t>(1, request_.sampling().choices())),
        visit_{.model = model_,
               .tenant = std::move(request.tenant),
               .tokens = request_.prompt_size(),
               .places = static_cast<int>(choices_.size()),
               .priority = request_.priority(),
               .deadline = deadline_} {}

  void Start() { router_->room_->Enter(&visit_, shared_from_this()); }

  void Cancel() override {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      if (attempt_ != nullptr) attempt_->context.TryCancel();
    }
    if (router_->room_->Leave(visit_)) End(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
  }

 private:
  void Admitted() override {
    admitted_ = true;
    Try(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                     absl::StrCat("no decode server for model \"", model_, "\" is ready")));
  }
  void Refused(const grpc::Status& status) override { End(status); }

  // Starts the next attempt; if there is no server left to try, the request ends with `otherwise`.
  void Try(const grpc::Status& otherwise) {
    std::shared_ptr<DecodeTarget> target =
        tried_.size() < kMaxAttempts ? router_->Pick(model_, tried_, numerics_) : nullptr;
    if (target == nullptr) return TryLater(otherwise);
    tried_.push_back(target.get());
    auto* attempt = new Attempt(shared_from_this(), std::move(target));
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      attempt_ = attempt;
      cancelled = cancelled_;
    }
    if (cancelled) attempt->context.TryCancel();
    attempt->Start();
  }

  // One call to one server; deletes itself when gRPC is done with it.
  struct Attempt : public grpc::ClientReadReactor<v1::GenerateEvent> {
    Attempt(std::shared_ptr<Call> call, std::shared_ptr<DecodeTarget> target)
        : call(std::move(call)), target(std::move(target)) {
      context.set_deadline(ToGrpcDeadline(this->call->deadline_));
      if (!this->call->traceparent_.empty()) context.AddMetadata(kTraceparent, this->call->traceparent_);
      this->target->outstanding.fetch_add(1, std::memory_order_relaxed);
    }
    void Start() {
      target->stub()->async()->Generate(&context, &call->request_, this);
      StartRead(&event);
      StartCall();
    }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      const WorkClock::Work work(&call->router_->events_);
      target->Heard();
      call->OnEvent(event);
      StartRead(&event);
    }
    void OnDone(const grpc::Status& status) override {
      target->outstanding.fetch_sub(1, std::memory_order_relaxed);
      call->OnAttemptDone(target.get(), status);
      delete this;
    }

    const std::shared_ptr<Call> call;
    const std::shared_ptr<DecodeTarget> target;
    grpc::ClientContext context;
    v1::GenerateEvent event;
  };

  // What was told of one choice, and how much of it the running attempt has computed again.
  struct Choice {
    std::vector<int32_t> tokens;
    size_t repeated = 0;
    bool finished = false;
  };

  void OnEvent(const v1::GenerateEvent& event) {
    if (diverged_) return;
    switch (event.event_case()) {
      case v1::GenerateEvent::kStarted:
        if (committed_) {
          if (!SamePlan(started_, event.started())) Diverge();
        } else {
          started_ = event.started();  // sent with the first token: until then another server may take over
        }
        break;
      case v1::GenerateEvent::kPromptLogprobs:
        if (!committed_) observer_->OnPromptLogprobs(event.prompt_logprobs());
        break;
      case v1::GenerateEvent::kToken:
        if (!IsNews(event.token())) break;
        TellStarted();
        if (!observer_->OnToken(event.token())) Cancel();
        break;
      case v1::GenerateEvent::kFinished:
        if (!IsNews(event.finished())) break;
        TellStarted();
        observer_->OnFinished(event.finished());
        break;
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;
    }
  }

  // Whether the observer has not been told of it. What it was told must come again as it was.
  bool IsNews(const v1::Token& token) {
    if (token.choice() >= choices_.size()) return true;  // the observer's to refuse
    Choice& choice = choices_[token.choice()];
    if (choice.repeated < choice.tokens.size()) {
      if (choice.tokens[choice.repeated++] != token.id()) Diverge();
      return false;
    }
    if (choice.finished) {
      Diverge();
      return false;
    }
    choice.tokens.push_back(token.id());
    ++choice.repeated;
    return true;
  }
  bool IsNews(const v1::Finished& finished) {
    if (finished.choice() >= choices_.size()) return true;
    Choice& choice = choices_[finished.choice()];
    if (choice.repeated < choice.tokens.size()) {
      Diverge();
      return false;
    }
    return !std::exchange(choice.finished, true);
  }

  // The running attempt gives another answer than the one that was begun.
  void Diverge() {
    diverged_ = true;
    absl::MutexLock lock(&mutex_);
    if (attempt_ != nullptr) attempt_->context.TryCancel();
  }

  void TellStarted() {
    if (std::exchange(committed_, true)) return;
    observer_->OnStarted(started_);
  }

  void OnAttemptDone(DecodeTarget* target, grpc::Status status) {
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      attempt_ = nullptr;
      cancelled = cancelled_;
    }
    // A server that shuts down cancels its calls: not the client's doing, so the call may move on. One whose
    // answer diverged was cancelled from here: it is well, and others may be asking it.
    if (status.error_code() == grpc::StatusCode::CANCELLED && !cancelled && !diverged_) {
      status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the decode server has given the call up");
    }
    const grpc::StatusCode code = status.error_code();
    found_full_ |= code == grpc::StatusCode::RESOURCE_EXHAUSTED && status.error_details() != kHopeless;
    if (code == grpc::StatusCode::UNAVAILABLE) {
      target->Down(Describe(status));
      router_->prober_->ProbeSoon(target);
      gone_.push_back(target);
    }
    if (diverged_ && !cancelled) {
      return End(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                              "the decode server was lost, and another one gives another answer"));
    }
    // Another server may be up, have room now, or be larger.
    const bool elsewhere = code == grpc::StatusCode::UNAVAILABLE ||
                           code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                           code == grpc::StatusCode::FAILED_PRECONDITION;
    if (!elsewhere || cancelled || MonotonicNow() >= deadline_) return End(status);
    if (!committed_) return Try(IsCut() ? lost_ : status);
    if (IsWhole()) return End(status);
    // In the midst of an answer only a server that is gone is a reason to ask another one: of one that
    // refuses to go on, the reader is too slow. One that repeats may also have had no room.
    const bool repeating =
        absl::c_any_of(choices_, [](const Choice& choice) { return choice.repeated < choice.tokens.size(); });
    if (code != grpc::StatusCode::UNAVAILABLE && !repeating) return End(status);
    GoOnElsewhere(*target, status);
  }

  bool IsCut() const { return rescue_until_ != absl::InfinitePast(); }
  // Nothing more can come.
  bool IsWhole() const {
    return absl::c_all_of(choices_, [](const Choice& choice) { return choice.finished; });
  }

  void GoOnElsewhere(const DecodeTarget& target, const grpc::Status& status) {
    if (!IsCut()) {
      rescue_until_ = std::min(deadline_, MonotonicNow() + kRescue);
      lost_ = status;
      spdlog::warn("request={} decode server {} was lost in the midst of its answer: {}",
                   request_.request_id(), target.name(), status.error_message());
    }
    if (observer_->Restart()) {
      outcome_ = "restarted";
      committed_ = false;
      started_.Clear();
      choices_.assign(choices_.size(), {});
    } else {
      outcome_ = "continued";
      if (numerics_.empty()) numerics_ = target.numerics();
      if (numerics_.empty()) return End(status);
      for (Choice& choice : choices_) choice.repeated = 0;
      AskForPlan(started_, &request_);
    }
    Try(lost_);
  }

  // No server can take the request now. One whose answer was cut may wait for that.
  void TryLater(const grpc::Status& otherwise) {
    if (WaitsAgain(otherwise)) return;
    if (MonotonicNow() >= rescue_until_ || !router_->HasOther(model_, gone_, numerics_))
      return End(otherwise);
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kRescueLook),
                [self = shared_from_this(), otherwise](bool) { self->TryAgain(otherwise); });
  }
  // Whether the request waits for a place again, as a server was full. One that is refused because its deadline is lost
  // does not.
  bool WaitsAgain(const grpc::Status& refusal) {
    if (!found_full_ || refusal.error_details() == kHopeless || committed_ || IsCut()) return false;
    // Before it may be admitted, on another thread.
    admitted_ = false;
    found_full_ = false;
    tried_ = gone_;
    const auto self = shared_from_this();  // which may end meanwhile
    if (!router_->room_->Return(&visit_, self)) {
      admitted_ = true;
      return false;
    }
    // A client that left before it waited again was told to no one.
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      cancelled = cancelled_;
    }
    if (cancelled && router_->room_->Leave(visit_)) {
      End(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    }
    return true;
  }
  void TryAgain(const grpc::Status& otherwise) {
    alarm_.reset();  // it holds this call by its callback
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      cancelled = cancelled_;
    }
    if (cancelled) return End(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    tried_ = gone_;  // those are not asked twice: what ended them may have been this request
    Try(otherwise);
  }

  void End(const grpc::Status& status) {
    if (IsCut()) {
      router_->cut_answers_.Add({{"model", model_}, {"outcome", IsWhole() ? outcome_ : "lost"}});
    }
    {
      const WorkClock::Work work(&router_->events_);
      observer_->OnEnd(status);
      observer_.reset();
    }
    if (admitted_) router_->room_->Ended(visit_, status.ok());
    router_->CallEnded();
  }

  Router* const router_;
  const std::string model_;
  v1::GenerateRequest request_;  // of the running attempt, or the next one
  const absl::Time deadline_;
  std::shared_ptr<GenerateObserver> observer_;
  const std::string traceparent_;
  std::vector<DecodeTarget*> tried_;
  std::vector<DecodeTarget*> gone_;  // of them, that could not be reached, or not to the end
  v1::Started started_;
  bool committed_ = false;       // the observer was told something
  std::vector<Choice> choices_;  // as far as it was told
  bool diverged_ = false;
  // Since a server was lost in the midst of the answer:
  absl::Time rescue_until_ = absl::InfinitePast();  // when others are no longer waited for
  grpc::Status lost_;
  std::string numerics_;  // that another server must have to go on; "": any
  const char* outcome_ = "lost";
  std::unique_ptr<grpc::Alarm> alarm_;  // of TryLater
  WaitingRoom::Visit visit_;
  bool admitted_ = false;
  bool found_full_ = false;  // a server, since the request was admitted
  absl::Mutex mutex_;
  Attempt* attempt_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

Router::Router(const std::vector<Model>& models, const Timing& timing, Metrics* metrics,
               const std::shared_ptr<grpc::ChannelCredentials>& credentials,
               const WaitingQueue::Options& waiting)
    : cut_answers_(metrics->Counter("aludel_cut_answers_total",
                                    "Answers whose decode server was lost, by what became of them.")) {
  std::vector<std::string> names;
  std::vector<std::shared_ptr<DecodeTarget>> targets;
  for (const Model& model : models) {
    names.push_back(model.expectation.model);
    for (const char* outcome : {"restarted", "continued", "lost"}) {
      cut_answers_.Add({{"model", model.expectation.model}, {"outcome", outcome}}, 0);
    }
    for (const std::string& name : model.decode_targets) {
      targets.push_back(std::make_shared<DecodeTarget>(name, model.expectation, credentials, metrics));
      targets_[model.expectation.model].push_back(targets.back());
    }
  }
  room_ = std::make_unique<WaitingRoom>(
      waiting, names, [this](const std::string& model) { return Places(model); }, metrics);
  prober_ = std::make_unique<DecodeProber>(
      std::move(targets),
      DecodeProber::Timing{.interval = timing.probe_interval, .timeout = timing.probe_timeout});
}

Router::~Router() { AwaitCalls(); }

void Router::AwaitCalls() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* calls) { return *calls == 0; }, &running_calls_));
}

std::optional<int> Router::Places(const std::string& model) const {
  const auto it = targets_.find(model);
  if (it == targets_.end()) return std::nullopt;
  std::optional<int> places;
  for (const auto& target : it->second) {
    if (target->usable()) places = places.value_or(0) + static_cast<int>(target->max_choices());
  }
  return places;
}

Router::ModelState Router::State(const std::string& model) const {
  ModelState state;
  const auto it = targets_.find(model);
  if (it == targets_.end()) return state;
  for (const auto& target : it->second) {
    const uint64_t context = target->max_context();
    if (context > 0 && (state.max_context == 0 || context < state.max_context)) state.max_context = context;
    if (target->usable()) {
      state.ready = true;
      state.max_choices = std::max(state.max_choices, target->max_choices());
    } else {
      absl::StrAppend(&state.reason, state.reason.empty() ? "" : "; ", target->name(), ": ",
                      target->reason());
    }
  }
  return state;
}

std::vector<std::string> Router::Formats(const std::string& model) const {
  std::vector<std::string> formats;
  const auto it = targets_.find(model);
  if (it == targets_.end()) return formats;
  bool first = true;
  for (const auto& target : it->second) {
    if (!target->usable()) continue;
    const std::vector<std::string> own = target->formats();
    if (std::exchange(first, false)) formats = own;
    std::erase_if(formats, [&](const std::string& name) { return !absl::c_linear_search(own, name); });
  }
  return formats;
}

int Router::Outstanding(const std::string& model) const {
  const auto it = targets_.find(model);
  if (it == targets_.end()) return 0;
  int sum = 0;
  for (const auto& target : it->second) sum += target->outstanding.load(std::memory_order_relaxed);
  return sum;
}

std::shared_ptr<DecodeTarget> Router::Pick(const std::string& model, const std::vector<DecodeTarget*>& tried,
                                           const std::string& numerics) const {
  std::shared_ptr<DecodeTarget> best;
  std::pair<bool, int> best_rank;  // a slow server comes behind every one that is ready
  const auto it = targets_.find(model);
  if (it == targets_.end()) return best;
  for (const auto& target : it->second) {
    if (!target->usable() || absl::c_linear_search(tried, target.get())) continue;
    if (!numerics.empty() && target->numerics() != numerics) continue;
    const std::pair<bool, int> rank = {!target->ready(), target->outstanding.load()};
    if (best == nullptr || rank < best_rank) std::tie(best, best_rank) = std::pair(target, rank);
  }
  return best;
}

std::shared_ptr<GenerateCall> Router::Generate(Request request, std::shared_ptr<GenerateObserver> observer) {
  // Chosen here, so that every server draws the same tokens.
  if (!request.message.sampling().has_seed()) {
    thread_local absl::BitGen random;
    request.message.mutable_sampling()->set_seed(absl::Uniform<uint64_t>(random));
  }
  auto call = std::make_shared<Call>(this, std::move(request), std::move(observer));
  {
    absl::MutexLock lock(&mutex_);
    ++running_calls_;
  }
  call->Start();
  return call;
}

bool Router::HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone,
                      const std::string& numerics) const {
  const auto it = targets_.find(model);
  return it != targets_.end() && absl::c_any_of(it->second, [&](const std::shared_ptr<DecodeTarget>& target) {
           const std::string found = target->numerics();
           return !absl::c_linear_search(gone, target.get()) &&
                  (numerics.empty() || found.empty() || found == numerics);
         });
}

void Router::CallEnded() {
  absl::MutexLock lock(&mutex_);
  --running_calls_;
}

}  // namespace aludel
