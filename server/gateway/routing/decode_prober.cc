#include "server/gateway/routing/decode_prober.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/deadline.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Probes of a server that is down start soon and back off, up to this many intervals apart.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr int kMaxBackoff = 8;
constexpr absl::Duration kPause = absl::Milliseconds(1);
// A server without the Load service may be replaced by one that has it.
constexpr absl::Duration kNoLoadRetry = absl::Seconds(30);

}  // namespace

// A target's probing state; touched by the prober's thread, except by a call in flight.
struct DecodeProber::Probed {
  explicit Probed(std::shared_ptr<DecodeTarget> probed) : target(std::move(probed)) {}

  const std::shared_ptr<DecodeTarget> target;
  absl::Time next = absl::InfinitePast();
  absl::Duration retry;    // interval between the last two probes in vain; zero: the last was none
  bool in_flight = false;  // under mutex_
  std::unique_ptr<grpc::ClientContext> context;
  v1::DescribeRequest request;
  v1::DecodeDescription description;
  // The same of load reports.
  absl::Time next_load = absl::InfinitePast();
  bool load_in_flight = false;
  std::unique_ptr<grpc::ClientContext> load_context;
  v1::LoadRequest load_request;
  v1::LoadReport load;
};

DecodeProber::DecodeProber(const std::vector<std::shared_ptr<DecodeTarget>>& targets, const Timing& timing,
                           Look look)
    : timing_(timing), look_(std::move(look)) {
  SetTargets(targets);
  thread_ = std::thread([this] { Loop(); });
}

DecodeProber::~DecodeProber() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return running_ == 0; });
}

void DecodeProber::SetTargets(const std::vector<std::shared_ptr<DecodeTarget>>& targets) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Probed>> probed;
  for (const auto& target : targets) {
    const auto known = std::find_if(probed_.begin(), probed_.end(),
                                    [&target](const auto& one) { return one->target == target; });
    // An entry's target is constant, as calls in flight read it.
    probed.push_back(known != probed_.end() ? *known : std::make_shared<Probed>(target));
  }
  probed_ = std::move(probed);
  answered_ = true;
  changed_.notify_all();
}

void DecodeProber::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    answered_ = false;
    absl::Time wake = MonotonicNow() + kMaxBackoff * timing_.interval;
    for (const auto& probed : probed_) {
      if (!probed->in_flight && probed->next <= MonotonicNow()) Probe(probed);
      if (!probed->in_flight) wake = std::min(wake, probed->next);
      if (!probed->target->usable() || probed->load_in_flight) continue;
      if (probed->next_load <= MonotonicNow()) AskLoad(probed);
      if (!probed->load_in_flight) wake = std::min(wake, probed->next_load);
    }
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wake - MonotonicNow()),
                      [this] { return stopping_ || answered_; });
    lock.unlock();
    look_(this);
    lock.lock();
    // Many servers answer at about the same time: they are gone through once for all of those answers.
    changed_.wait_for(lock, absl::ToChronoNanoseconds(kPause), [this] { return stopping_; });
  }
}

// Under mutex_; the answer comes on a gRPC thread.
void DecodeProber::Probe(const std::shared_ptr<Probed>& probed) {
  probed->in_flight = true;
  ++running_;
  probed->context = std::make_unique<grpc::ClientContext>();
  probed->context->set_deadline(ToGrpcDeadline(MonotonicNow() + timing_.timeout));
  probed->request.set_protocol_version(kHandoffVersion);
  probed->target->stub()->async()->Describe(
      probed->context.get(), &probed->request, &probed->description,
      [this, probed, sent = MonotonicNow()](const grpc::Status& status) {
        const std::string reason =
            absl::StrCat("code ", static_cast<int>(status.error_code()), ": ", status.error_message());
        if (status.ok()) {
          probed->target->Described(probed->description);
        } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
          probed->target->Missed(sent, reason);
        } else {
          probed->target->Down(reason);
        }
        std::lock_guard<std::mutex> lock(mutex_);
        probed->retry =
            status.ok() ? absl::ZeroDuration()
                        : std::min(std::max(2 * probed->retry, kFirstRetry), kMaxBackoff * timing_.interval);
        probed->next = MonotonicNow() + (status.ok() ? timing_.interval : probed->retry);
        probed->in_flight = false;
        answered_ = true;
        --running_;
        changed_.notify_all();
      });
}

// Likewise. Whether the server is well is not told from it.
void DecodeProber::AskLoad(const std::shared_ptr<Probed>& probed) {
  probed->load_in_flight = true;
  ++running_;
  probed->load_context = std::make_unique<grpc::ClientContext>();
  probed->load_context->set_deadline(ToGrpcDeadline(MonotonicNow() + timing_.timeout));
  probed->load_request = probed->target->WantedReport();
  probed->load.Clear();
  probed->target->load_stub()->async()->Report(
      probed->load_context.get(), &probed->load_request, &probed->load,
      [this, probed, sent = MonotonicNow()](const grpc::Status& status) {
        // Of a moment after it was asked for: by this clock, however long the way took.
        if (status.ok()) probed->target->Reported(probed->load, sent);
        const bool unknown = status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
        std::lock_guard<std::mutex> lock(mutex_);
        probed->next_load = sent + (unknown ? kNoLoadRetry : timing_.load_interval);
        probed->load_in_flight = false;
        answered_ = true;
        --running_;
        changed_.notify_all();
      });
}

void DecodeProber::ProbeSoon(const DecodeTarget* target) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& probed : probed_) {
    if (probed->target.get() == target) probed->next = MonotonicNow();
  }
  answered_ = true;
  changed_.notify_all();
}

}  // namespace aludel
