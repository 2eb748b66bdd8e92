#include "server/decode/shadow_checker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/random/random.h"
#include "runtime/engine/engine_stats.h"
#include "server/rpc/rpc_status.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Kept of one answer; with their log-probabilities about 170 bytes each.
constexpr size_t kMaxTokens = 256;
// How often the engine is looked at while answers wait, and how long a check may delay a request that comes.
constexpr absl::Duration kLook = absl::Milliseconds(20);
// Nats; two caches of one model that differ by rounding are near 1e-5.
const std::vector<double> kDivergenceBuckets = {1e-5, 1e-4, 1e-3, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10};
// Probability of "the rest" where rounding leaves none.
constexpr double kLeastRest = 1e-9;

}  // namespace

void ShadowAnswer::Keep(const TokenEvent& event) {
  if (tokens.size() >= kMaxTokens) return;
  tokens.push_back(event.id);
  logprobs.push_back(event.logprobs);
}

double PartitionKl(absl::Span<const TokenLogprob> p, absl::Span<const TokenLogprob> q) {
  double kl = 0;
  double rest_p = 1;
  double rest_q = 1;
  for (size_t i = 1; i < p.size(); ++i) {
    const auto found =
        std::find_if(q.begin(), q.end(), [&](const TokenLogprob& other) { return other.id == p[i].id; });
    if (found == q.end()) continue;
    const double probability = std::exp(p[i].logprob);
    kl += probability * (p[i].logprob - found->logprob);
    rest_p -= probability;
    rest_q -= std::exp(found->logprob);
  }
  rest_p = std::max(rest_p, kLeastRest);
  rest_q = std::max(rest_q, kLeastRest);
  return std::max(0.0, kl + rest_p * std::log(rest_p / rest_q));
}

ShadowMetrics::ShadowMetrics(Metrics* metrics)
    : checks_(metrics->Counter("aludel_shadow_checks_total",
                               "Answers computed again on the consumer's local prefill, by outcome.")),
      tokens_(metrics->Counter("aludel_shadow_tokens_total",
                               "Tokens of shadow checks, by whether local prefill would choose them.")),
      kl_(metrics->Histogram("aludel_shadow_kl_nats",
                             "KL(local prefill || answered) of one token's distribution.",
                             kDivergenceBuckets)) {}

void ShadowMetrics::CountCheck(const std::string& model, const std::string& format,
                               const std::string& outcome) const {
  checks_.Add({{"model", model}, {"format", format}, {"outcome", outcome}});
}

void ShadowMetrics::ObserveTokens(const std::string& model, const std::string& format, int64_t agreeing,
                                  int64_t differing) const {
  const std::pair<const char*, int64_t> parts[] = {{"agree", agreeing}, {"differ", differing}};
  for (const auto& [verdict, tokens] : parts) {
    tokens_.Add({{"model", model}, {"format", format}, {"verdict", verdict}}, static_cast<double>(tokens));
  }
}

void ShadowMetrics::ObserveKl(const std::string& model, const std::string& format, double nats) const {
  kl_.Observe({{"model", model}, {"format", format}}, nats);
}

// The second computation of one answer. Needs nothing but the metrics, so that the engine may end it late.
class ShadowChecker::Check : public SequenceListener {
 public:
  Check(ShadowAnswer answer, std::string model, const ShadowMetrics& metrics)
      : answer_(std::move(answer)), model_(std::move(model)), metrics_(metrics) {}

  void OnToken(const TokenEvent& event) override { own_.push_back(event.logprobs); }
  void OnDone(const absl::Status& status, const SequenceResult&) override {
    const bool whole = status.ok() && own_.size() == answer_.tokens.size();
    metrics_.CountCheck(model_, answer_.format,
                        whole                       ? "ok"
                        : absl::IsCancelled(status) ? "interrupted"
                                                    : StatusName(status.code()));
    if (whole) Report();
    done_ = true;
  }
  bool done() const { return done_; }
  const ShadowAnswer& answer() const { return answer_; }

 private:
  void Report() {
    int64_t agreeing = 0;
    for (size_t i = 0; i < own_.size(); ++i) {
      // Entry 0 is the token itself, entry 1 the likeliest.
      agreeing += own_[i][1].id == answer_.logprobs[i][1].id ? 1 : 0;
      metrics_.ObserveKl(model_, answer_.format, PartitionKl(own_[i], answer_.logprobs[i]));
    }
    metrics_.ObserveTokens(model_, answer_.format, agreeing, static_cast<int64_t>(own_.size()) - agreeing);
  }

  const ShadowAnswer answer_;
  const std::string model_;
  const ShadowMetrics metrics_;
  std::vector<std::vector<TokenLogprob>> own_;  // the engine's thread's
  std::atomic<bool> done_ = false;
};

ShadowChecker::ShadowChecker(const ShadowOptions& options, std::string model, Engine* engine, Timer* timer,
                             Metrics* metrics)
    : options_(options), model_(std::move(model)), engine_(engine), timer_(timer), metrics_(metrics) {}

ShadowChecker::~ShadowChecker() { Stop(); }

void ShadowChecker::Stop() {
  Timer::Id look = 0;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    look = next_look_;
  }
  if (look != 0) timer_->CancelAndWait(look);
}

bool ShadowChecker::Choose() const {
  thread_local absl::BitGen random;
  return options_.share > 0 && absl::Uniform<double>(random, 0, 1) < options_.share;
}

void ShadowChecker::Offer(ShadowAnswer answer) {
  if (answer.tokens.empty()) return;
  answer.ended = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  if (queue_.size() >= static_cast<size_t>(options_.max_queue)) {
    return metrics_.CountCheck(model_, answer.format, "queue_full");
  }
  queue_.push_back(std::move(answer));
  if (next_look_ == 0) next_look_ = timer_->At(MonotonicNow() + kLook, [this] { Look(); });
}

// On the timer's thread, as long as there is something to do.
void ShadowChecker::Look() {
  absl::MutexLock lock(&mutex_);
  next_look_ = 0;
  if (stopping_) return;
  if (running_ != nullptr && running_->done()) running_.reset();
  while (!queue_.empty() && MonotonicNow() - queue_.front().ended > options_.max_wait) {
    metrics_.CountCheck(model_, queue_.front().format, "too_old");
    queue_.pop_front();
  }
  const EngineStats stats = engine_->stats();
  const int64_t sequences = stats.running + stats.waiting;
  if (running_ != nullptr) {
    if (sequences > 1) engine_->Cancel(sequence_, absl::CancelledError("a request has come"));
  } else if (sequences == 0 && !queue_.empty()) {
    SamplingParams sampling{.ignore_eos = true};
    sampling.forced = queue_.front().tokens;
    sampling.max_tokens = static_cast<int64_t>(sampling.forced.size());
    sampling.top_logprobs = kShadowLogprobs;
    GenerateSpec spec{.prompt = queue_.front().prompt,
                      .sampling = std::move(sampling),
                      .cache_salt = queue_.front().cache_salt};
    auto check = std::make_shared<Check>(std::move(queue_.front()), model_, metrics_);
    queue_.pop_front();
    const auto sequence = engine_->Generate(std::move(spec), check);
    if (sequence.ok()) {
      running_ = std::move(check);
      sequence_ = *sequence;
    } else {
      metrics_.CountCheck(model_, check->answer().format, StatusName(sequence.status().code()));
    }
  }
  if (running_ != nullptr || !queue_.empty())
    next_look_ = timer_->At(MonotonicNow() + kLook, [this] { Look(); });
}

}  // namespace aludel
