#include "server/gateway/routing/router.h"

#include <utility>

#include "absl/random/random.h"
#include "server/gateway/routing/policy/prefix_keys.h"
#include "server/gateway/routing/policy/rendezvous.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// How often the streams of cache events are looked at, at most.
constexpr absl::Duration kTendInterval = absl::Milliseconds(50);

// Without the model: prefill servers serve several with what they compute once (PrefillKey).
PrefixKeys KeysOf(const std::string& cache_salt, const std::string& cache_key,
                  absl::Span<const int32_t> prompt) {
  const PromptSeed seed = SaltSeed(cache_salt);
  PrefixKeys keys = MakePrefixKeys(seed, prompt, /*with_blocks=*/true);
  if (!cache_key.empty()) keys.home = HomeKey(seed, cache_key);
  return keys;
}

// `adapter`: over the model, "": none. What it has cached of a prompt is the model's at its beginning, or all its own, and
// of that servers do not tell.
PrefixKeys OfModel(const DecodeTargets& targets, const std::string& model, const std::string& adapter,
                   PrefixKeys keys) {
  const bool own = !adapter.empty() && !targets.BeginsAsBase(model, adapter);
  const uint64_t hash = HashTexts({own ? adapter : model});
  for (uint64_t& key : keys.keys) key = ModelKey(key, hash);
  for (uint64_t& key : keys.blocks) key = ModelKey(key, hash);
  if (keys.home) keys.home = ModelKey(*keys.home, hash);
  keys.has_blocks = !own;
  return keys;
}

// Of equally busy prefill servers the first is asked: for prompts that begin alike, the same one.
void OrderPrefillTargets(uint64_t key, v1::GenerateRequest* request) {
  const std::vector<std::string> names(request->prefill_targets().begin(), request->prefill_targets().end());
  request->clear_prefill_targets();
  for (const std::string& name : RendezvousOrder(key, names)) request->add_prefill_targets(name);
}

}  // namespace

Router::Router(const std::vector<Model>& models, const Timing& timing, Metrics* metrics,
               const std::shared_ptr<grpc::ChannelCredentials>& credentials,
               const WaitingQueue::Options& waiting, const Fleet::Options& routing)
    : cut_answers_(metrics->Counter("aludel_cut_answers_total",
                                    "Answers whose decode server was lost, by what became of them.")),
      targets_(models, credentials, metrics, routing) {
  std::vector<std::string> names;
  for (const Model& model : models) {
    names.push_back(model.expectation.model);
    for (const char* outcome : {"restarted", "continued", "lost"}) {
      cut_answers_.Add({{"model", model.expectation.model}, {"outcome", outcome}}, 0);
    }
  }
  room_ = std::make_unique<WaitingRoom>(
      waiting, names, [this](const std::string& model) { return targets_.Places(model); }, metrics);
  prober_ = std::make_unique<DecodeProber>(
      targets_.all(),
      DecodeProber::Timing{.interval = timing.probe_interval, .timeout = timing.probe_timeout},
      [this](DecodeProber* prober) {
        absl::MutexLock lock(&listing_);
        if (targets_.Settle()) prober->SetTargets(targets_.all());
        if (MonotonicNow() - feeds_tended_ < kTendInterval) return;
        feeds_tended_ = MonotonicNow();
        const auto targets = targets_.all();
        feeds_.Tend({targets.begin(), targets.end()});
      });
  routing_ = {.targets = &targets_,
              .room = room_.get(),
              .prober = prober_.get(),
              .events = &events_,
              .cut_answers = &cut_answers_,
              .rescue = kRescue,
              .calls = &calls_,
              .by_prefix = routing.policy == RoutingPolicy::kPrefix};
}

std::optional<DecodeTargets::Explanation> Router::Explain(const std::string& model,
                                                          const std::string& adapter,
                                                          const std::string& cache_salt,
                                                          const std::string& cache_key,
                                                          absl::Span<const int32_t> prompt) const {
  return targets_.Explain(model, OfModel(targets_, model, adapter, KeysOf(cache_salt, cache_key, prompt)));
}

void Router::SetDecodeTargets(const std::string& model, const std::vector<ServerName>& targets) {
  absl::MutexLock lock(&listing_);
  targets_.SetTargets(model, targets);
  prober_->SetTargets(targets_.all());
}

void Router::SetPrefillTargets(const std::vector<ServerName>& targets) {
  std::vector<std::string> names;
  for (const ServerName& target : targets) names.push_back(target.target);
  absl::MutexLock lock(&mutex_);
  prefill_targets_ = std::move(names);
}

Router::~Router() { AwaitCalls(); }

std::shared_ptr<GenerateCall> Router::Generate(Request request, std::shared_ptr<GenerateObserver> observer) {
  // Chosen here, so that every server draws the same tokens.
  if (!request.message.sampling().has_seed()) {
    thread_local absl::BitGen random;
    request.message.mutable_sampling()->set_seed(absl::Uniform<uint64_t>(random));
  }
  PrefixKeys keys = KeysOf(request.message.cache_salt(), request.cache_key, request.message.prompt());
  if (request.message.prefill_targets_size() > 0) {
    absl::MutexLock lock(&mutex_);
    if (prefill_targets_) {
      request.message.mutable_prefill_targets()->Assign(prefill_targets_->begin(), prefill_targets_->end());
    }
  }
  if (request.message.prefill_targets_size() > 1 && keys.size() > 0) {
    OrderPrefillTargets(PrefillKey(keys.keys[0], targets_.PrefillSourceOf(request.model)), &request.message);
  }
  keys = OfModel(targets_, request.model, request.message.adapter(), std::move(keys));
  auto call =
      std::make_shared<RoutedCall>(routing_, std::move(request), std::move(keys), std::move(observer));
  call->Start();
  return call;
}

}  // namespace aludel
