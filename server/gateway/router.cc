#include "server/gateway/router.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "server/deadline.h"
#include "server/trace_context.h"

namespace aludel {
namespace {

// Servers tried for one request.
constexpr size_t kMaxAttempts = 3;
// Probes of a server that is down start soon and back off, up to this many intervals apart.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr int kMaxBackoff = 8;

std::string Describe(const grpc::Status& status) {
  return absl::StrCat("code ", static_cast<int>(status.error_code()), ": ", status.error_message());
}

}  // namespace

// One request over its attempts. Owned by the running attempt; the exchange holds a weak reference to
// cancel it.
class Router::Call : public GenerateCall, public std::enable_shared_from_this<Router::Call> {
 public:
  Call(Router* router, std::string model, v1::GenerateRequest request, absl::Time deadline,
       std::shared_ptr<GenerateObserver> observer, std::string traceparent)
      : router_(router),
        model_(std::move(model)),
        request_(std::move(request)),
        deadline_(deadline),
        observer_(std::move(observer)),
        traceparent_(std::move(traceparent)) {}

  // Starts the next attempt; if there is no server left to try, the request ends with `otherwise`.
  void Try(const grpc::Status& otherwise) {
    std::shared_ptr<DecodeTarget> target =
        tried_.size() < kMaxAttempts ? router_->Pick(model_, tried_) : nullptr;
    if (target == nullptr) return End(otherwise);
    tried_.push_back(target.get());
    auto* attempt = new Attempt(shared_from_this(), std::move(target));
    bool cancelled;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      attempt_ = attempt;
      cancelled = cancelled_;
    }
    if (cancelled) attempt->context.TryCancel();
    attempt->Start();
  }

  void Cancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (attempt_ != nullptr) attempt_->context.TryCancel();
  }

 private:
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

  void OnEvent(const v1::GenerateEvent& event) {
    switch (event.event_case()) {
      case v1::GenerateEvent::kStarted:
        started_ = event.started();  // sent with the first token: until then another server may take over
        break;
      case v1::GenerateEvent::kToken:
        TellStarted();
        observer_->OnToken(event.token());
        break;
      case v1::GenerateEvent::kFinished:
        TellStarted();
        observer_->OnFinished(event.finished());
        break;
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;
    }
  }

  void TellStarted() {
    if (std::exchange(committed_, true)) return;
    observer_->OnStarted(started_);
  }

  void OnAttemptDone(DecodeTarget* target, grpc::Status status) {
    bool cancelled;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      attempt_ = nullptr;
      cancelled = cancelled_;
    }
    // A server that shuts down cancels its calls: not the client's doing, so the call may move on.
    if (status.error_code() == grpc::StatusCode::CANCELLED && !cancelled) {
      status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the decode server has given the call up");
    }
    const grpc::StatusCode code = status.error_code();
    if (code == grpc::StatusCode::UNAVAILABLE) target->Down(Describe(status));
    // Another server may be up, have room now, or be larger.
    const bool elsewhere = code == grpc::StatusCode::UNAVAILABLE ||
                           code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                           code == grpc::StatusCode::FAILED_PRECONDITION;
    if (elsewhere && !committed_ && !cancelled && MonotonicNow() < deadline_) return Try(status);
    End(status);
  }

  void End(const grpc::Status& status) {
    observer_->OnEnd(status);
    observer_.reset();
    router_->CallEnded();
  }

  Router* const router_;
  const std::string model_;
  const v1::GenerateRequest request_;
  const absl::Time deadline_;
  std::shared_ptr<GenerateObserver> observer_;
  const std::string traceparent_;
  std::vector<DecodeTarget*> tried_;
  v1::Started started_;
  bool committed_ = false;
  std::mutex mutex_;
  Attempt* attempt_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// A target's probing state; touched by the prober thread, except by a probe in flight.
struct Router::Probed {
  std::shared_ptr<DecodeTarget> target;
  absl::Time next = absl::InfinitePast();
  absl::Duration retry;    // interval between the last two probes in vain; zero: the last was none
  bool in_flight = false;  // under mutex_
  std::unique_ptr<grpc::ClientContext> context;
  v1::DescribeRequest request;
  v1::DecodeDescription description;
};

Router::Router(const std::vector<Model>& models, const Timing& timing, Metrics* metrics,
               const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : timing_(timing) {
  for (const Model& model : models) {
    for (const std::string& name : model.decode_targets) {
      auto target = std::make_shared<DecodeTarget>(name, model.expectation, credentials, metrics);
      targets_[model.expectation.model].push_back(target);
      probed_.push_back(std::make_unique<Probed>());
      probed_.back()->target = std::move(target);
    }
  }
  prober_ = std::thread([this] { ProbeLoop(); });
}

Router::~Router() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  prober_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return running_calls_ == 0 && running_probes_ == 0; });
}

void Router::AwaitCalls() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return running_calls_ == 0; });
}

void Router::ProbeLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    answered_ = false;
    absl::Time wake = MonotonicNow() + kMaxBackoff * timing_.probe_interval;
    for (auto& probed : probed_) {
      if (!probed->in_flight && probed->next <= MonotonicNow()) Probe(probed.get());
      if (!probed->in_flight) wake = std::min(wake, probed->next);
    }
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wake - MonotonicNow()),
                      [this] { return stopping_ || answered_; });
  }
}

// Under mutex_; the answer comes on a gRPC thread.
void Router::Probe(Probed* probed) {
  probed->in_flight = true;
  ++running_probes_;
  probed->context = std::make_unique<grpc::ClientContext>();
  probed->context->set_deadline(ToGrpcDeadline(MonotonicNow() + timing_.probe_timeout));
  probed->request.set_protocol_version(kHandoffVersion);
  probed->target->stub()->async()->Describe(
      probed->context.get(), &probed->request, &probed->description,
      [this, probed](const grpc::Status& status) {
        if (status.ok()) {
          probed->target->Described(probed->description);
        } else {
          probed->target->Down(::aludel::Describe(status));
        }
        std::lock_guard<std::mutex> lock(mutex_);
        probed->retry = status.ok() ? absl::ZeroDuration()
                                    : std::min(std::max(2 * probed->retry, kFirstRetry),
                                               kMaxBackoff * timing_.probe_interval);
        probed->next = MonotonicNow() + (status.ok() ? timing_.probe_interval : probed->retry);
        probed->in_flight = false;
        answered_ = true;
        --running_probes_;
        changed_.notify_all();
      });
}

Router::ModelState Router::State(const std::string& model) const {
  ModelState state;
  const auto it = targets_.find(model);
  if (it == targets_.end()) return state;
  for (const auto& target : it->second) {
    const uint64_t context = target->max_context();
    if (context > 0 && (state.max_context == 0 || context < state.max_context)) state.max_context = context;
    if (target->ready()) {
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
    if (!target->ready()) continue;
    const std::vector<std::string> own = target->formats();
    if (std::exchange(first, false)) formats = own;
    std::erase_if(formats, [&](const std::string& name) { return !absl::c_linear_search(own, name); });
  }
  return formats;
}

int Router::Outstanding(const std::string& model) const {
  int sum = 0;
  const auto it = targets_.find(model);
  if (it == targets_.end()) return sum;
  for (const auto& target : it->second) sum += target->outstanding.load(std::memory_order_relaxed);
  return sum;
}

std::shared_ptr<DecodeTarget> Router::Pick(const std::string& model,
                                           const std::vector<DecodeTarget*>& tried) const {
  std::shared_ptr<DecodeTarget> best;
  const auto it = targets_.find(model);
  if (it == targets_.end()) return best;
  for (const auto& target : it->second) {
    if (!target->ready() || absl::c_linear_search(tried, target.get())) continue;
    if (best == nullptr || target->outstanding.load() < best->outstanding.load()) best = target;
  }
  return best;
}

std::shared_ptr<GenerateCall> Router::Generate(const std::string& model, v1::GenerateRequest request,
                                               absl::Time deadline,
                                               std::shared_ptr<GenerateObserver> observer,
                                               const std::string& traceparent) {
  auto call =
      std::make_shared<Call>(this, model, std::move(request), deadline, std::move(observer), traceparent);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++running_calls_;
  }
  call->Try(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                         absl::StrCat("no decode server for model \"", model, "\" is ready")));
  return call;
}

void Router::CallEnded() {
  std::lock_guard<std::mutex> lock(mutex_);
  --running_calls_;
  changed_.notify_all();
}

}  // namespace aludel
