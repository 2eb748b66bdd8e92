#include "server/gateway/routing/decode_target.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/callback_threads.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

std::shared_ptr<grpc::Channel> OpenChannel(const ServerName& server,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  // gRPC's own reconnects back off up to two minutes; a decode server that restarts should serve in seconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // A peer that hangs, or a link that is down, sends no reset.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  if (!server.tls_name.empty()) arguments.SetSslTargetNameOverride(server.tls_name);
  return grpc::CreateCustomChannel(server.target, credentials, arguments);
}

std::string NumericsOf(const v1::DecodeDescription& description) {
  if (description.numerics().empty()) return "";
  return absl::StrCat(description.model().weights_hash(), " ", description.model().rope(), " ",
                      description.numerics());
}

}  // namespace

DecodeTarget::DecodeTarget(ServerName server, DecodeExpectation expectation,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics,
                           std::shared_ptr<ModelFleet> fleet)
    : server_(std::move(server)),
      expectation_(std::move(expectation)),
      metrics_(metrics),
      ready_metric_(metrics->Gauge("aludel_decode_target_ready", "1 where a decode server is ready.")),
      fleet_(std::move(fleet)),
      slot_(fleet_->Add(server_.target)),
      channel_(OpenChannel(server_, credentials)),
      stub_(v1::Decode::NewStub(channel_)),
      load_stub_(v1::Load::NewStub(channel_)),
      cache_stub_(v1::CacheEvents::NewStub(channel_)) {
  ready_metric_.Set({{"model", expectation_.model}, {"target", name()}}, 0);
}

void DecodeTarget::Retire() {
  absl::MutexLock lock(&mutex_);
  retired_ = true;
  spdlog::info("decode server {} is not one of model {} any more", name(), expectation_.model);
  ready_metric_.Remove({{"model", expectation_.model}, {"target", name()}});
  metrics_->Forget("target", name());
}

std::string DecodeTarget::reason() const {
  absl::MutexLock lock(&mutex_);
  return reason_;
}

std::vector<std::string> DecodeTarget::formats() const {
  absl::MutexLock lock(&mutex_);
  return formats_;
}

std::string DecodeTarget::prefill_source() const {
  absl::MutexLock lock(&mutex_);
  return prefill_source_;
}

bool DecodeTarget::IsAnother(const v1::DecodeDescription& description) {
  absl::MutexLock lock(&mutex_);
  const uint64_t before = std::exchange(epoch_, description.epoch());
  if (before == 0 || before == epoch_) return false;
  adapter_changes_ = prefixes_end_ = cache_resets_ = 0;
  const std::string numerics = NumericsOf(description);
  spdlog::info("decode server {} has started again{}", name(),
               numerics == numerics_ ? "" : ", and is another one: it gives other tokens");
  return true;
}

void DecodeTarget::Described(const v1::DecodeDescription& description) {
  const std::string& fingerprint = description.model().tokenizer_fingerprint();
  if (description.protocol_version() != kHandoffVersion) {
    return Down(
        absl::StrCat("speaks protocol version ", description.protocol_version(), ", want ", kHandoffVersion));
  }
  if (description.served_model_name() != expectation_.model) {
    return Down(absl::StrCat("serves model \"", description.served_model_name(), "\", want \"",
                             expectation_.model, "\""));
  }
  if (!expectation_.tokenizer_fingerprint.empty() && fingerprint != expectation_.tokenizer_fingerprint) {
    return Down(absl::StrCat("has tokenizer ", fingerprint, ", the gateway's model directory has ",
                             expectation_.tokenizer_fingerprint));
  }
  max_context_.store(description.max_context(), std::memory_order_relaxed);
  max_choices_.store(description.max_choices(), std::memory_order_relaxed);
  fleet_->SetPlaces(slot_, static_cast<int>(description.max_choices()));
  if (IsAnother(description)) fleet_->Restarted(slot_);  // without the lock, which the fleet's is held around
  absl::MutexLock lock(&mutex_);
  formats_.assign(description.formats().begin(), description.formats().end());
  numerics_ = NumericsOf(description);
  prefill_source_ = PrefillSource(description.producer(), description.encoder());
  // Answers may overtake each other.
  if (description.adapter_changes() >= adapter_changes_) {
    adapters_.clear();
    for (const std::string& name : description.adapters()) adapters_.try_emplace(name);
    for (const v1::AdapterDescription& adapter : description.adapter_descriptions()) {
      adapters_[adapter.name()] = adapter;
    }
    adapter_changes_ = description.adapter_changes();
  }
  health_.Answered(MonotonicNow());
  Publish("");
}

v1::LoadRequest DecodeTarget::WantedReport() const {
  v1::LoadRequest request;
  absl::MutexLock lock(&mutex_);
  request.set_epoch(epoch_);
  request.set_prefixes_end(prefixes_end_);
  return request;
}

bool DecodeTarget::Accept(const v1::LoadReport& report) {
  bool reset;
  {
    absl::MutexLock lock(&mutex_);
    if (report.epoch() == 0 || report.epoch() != epoch_) return false;
    prefixes_end_ = std::max<uint64_t>(prefixes_end_, report.prefixes_end());
    reset = report.cache_resets() > cache_resets_;
    cache_resets_ = std::max<uint64_t>(cache_resets_, report.cache_resets());
  }
  if (reset) fleet_->ForgetCache(slot_);
  return true;
}

bool DecodeTarget::cache_is_of(uint64_t epoch) const {
  absl::MutexLock lock(&mutex_);
  return epoch == epoch_;
}

void DecodeTarget::Reported(const v1::LoadReport& report, absl::Time as_of) {
  if (Accept(report)) fleet_->Reported(slot_, report, as_of);
}

void DecodeTarget::Hinted(absl::string_view report) {
  v1::LoadReport parsed;
  if (!parsed.ParseFromArray(report.data(), static_cast<int>(report.size()))) return;
  parsed.clear_prefixes();
  // It is as old as its way here, which is short of what is sent meanwhile.
  Reported(parsed, MonotonicNow());
}

std::vector<std::string> DecodeTarget::adapters() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, adapter] : adapters_) names.push_back(name);
  return names;
}

bool DecodeTarget::ServesAdapter(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return adapters_.contains(name);
}

bool DecodeTarget::BeginsAsBase(const std::string& adapter) const {
  absl::MutexLock lock(&mutex_);
  const auto found = adapters_.find(adapter);
  return found != adapters_.end() && found->second.begins_as_base();
}

std::string DecodeTarget::numerics(const std::string& adapter) const {
  absl::MutexLock lock(&mutex_);
  if (adapter.empty() || numerics_.empty()) return numerics_;
  const auto found = adapters_.find(adapter);
  if (found == adapters_.end() || found->second.hash().empty()) return "";
  return absl::StrCat(numerics_, " ", found->second.hash(), " ", found->second.cache_of());
}

void DecodeTarget::Heard() { heard_ns_.store(absl::ToUnixNanos(MonotonicNow()), std::memory_order_relaxed); }

void DecodeTarget::Missed(absl::Time sent, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  health_.Heard(absl::FromUnixNanos(heard_ns_.load(std::memory_order_relaxed)));
  health_.Missed(sent, MonotonicNow());
  Publish(health_.state() == PeerHealth::State::kReady ? "" : reason);
}

void DecodeTarget::Down(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  health_.Gone();
  Publish(reason);
}

void DecodeTarget::Publish(const std::string& reason) {
  const PeerHealth::State state = health_.state();
  if (retired_) return;
  if (state == state_.load(std::memory_order_relaxed) && reason == reason_) return;
  reason_ = reason;
  state_.store(state, std::memory_order_relaxed);
  const bool ready = state == PeerHealth::State::kReady;
  ready_metric_.Set({{"model", expectation_.model}, {"target", name()}}, ready ? 1 : 0);
  if (ready) {
    spdlog::info("decode server {} is ready for model {}", name(), expectation_.model);
  } else {
    spdlog::warn("decode server {} is {} for model {}: {}", name(),
                 state == PeerHealth::State::kSlow ? "slow" : "not ready", expectation_.model, reason);
  }
}

}  // namespace aludel
