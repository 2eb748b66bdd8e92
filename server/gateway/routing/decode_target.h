#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "aludel/v1/load.grpc.pb.h"
#include "grpcpp/security/credentials.h"
#include "server/gateway/routing/model_fleet.h"
#include "server/observe/metrics.h"
#include "server/rpc/cache_events/cache_feeds.h"
#include "server/rpc/handoff_version.h"
#include "server/rpc/peer_health.h"
#include "server/rpc/server_name.h"

namespace aludel {

// What a decode server must be, to serve a model here.
struct DecodeExpectation {
  std::string model;                  // served name
  std::string tokenizer_fingerprint;  // of the tokenizer that makes this gateway's prompts; "": not compared
};

// One decode server: its channel, and what its last probe said. Thread-safe.
class DecodeTarget : public CacheSource {
 public:
  DecodeTarget(ServerName server, DecodeExpectation expectation,
               const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics,
               std::shared_ptr<ModelFleet> fleet);
  ~DecodeTarget() override { fleet_->Remove(slot_); }

  const ServerName& server() const { return server_; }
  const std::string& name() const { return server_.target; }
  size_t slot() const { return slot_; }  // in the fleet, as long as the target lives
  v1::Decode::Stub* stub() const { return stub_.get(); }
  v1::Load::Stub* load_stub() const { return load_stub_.get(); }
  bool ready() const { return state_.load(std::memory_order_relaxed) == PeerHealth::State::kReady; }
  // It answered a probe once, and may only be slow: for requests that no other server can take.
  bool usable() const {
    return ready() || state_.load(std::memory_order_relaxed) == PeerHealth::State::kSlow;
  }
  uint64_t max_context() const { return max_context_.load(std::memory_order_relaxed); }
  uint32_t max_choices() const { return max_choices_.load(std::memory_order_relaxed); }
  // That a request may force.
  std::vector<std::string> formats() const;
  // The model's identity and what else its tokens depend on: two servers of equal texts continue each other's
  // answers. `adapter` over it: "" for the model alone. "": it has not said so.
  std::string numerics(const std::string& adapter = "") const;
  // LoRA adapters over the model that it serves, in order.
  std::vector<std::string> adapters() const;
  bool ServesAdapter(const std::string& name) const;
  // v1::AdapterDescription::begins_as_base; false for one that is not there, and where it has not said so.
  bool BeginsAsBase(const std::string& adapter) const;
  // Whose codes it takes: PrefillSource of what it says.
  std::string prefill_source() const;
  // Why it is not ready; "" when it is.
  std::string reason() const;

  // Unfinished calls.
  std::atomic<int> outstanding{0};
  // What becomes of a request that ModelFleet::Pick has counted here.
  void Started(absl::Time sent, const v1::Started& started, const ModelFleet::Asked& asked) {
    fleet_->Started(slot_, sent, started, asked);
  }
  void TurnedAway(const PrefixKeys& keys, int64_t cached_tokens) {
    fleet_->TurnedAway(slot_, keys, cached_tokens);
  }
  void NotTaken(const PrefixKeys& keys, int64_t cached_tokens) {
    fleet_->NotTaken(slot_, keys, cached_tokens);
  }
  void Ended(const grpc::Status& status, int places = 1) { fleet_->Ended(slot_, status, places); }
  void CacheWasReset() { fleet_->ForgetCache(slot_); }
  // What a stream of its CacheEvents says goes to the fleet.
  const std::string& cache_name() const override { return name(); }
  v1::CacheEvents::Stub* cache_stub() const override { return cache_stub_.get(); }
  bool cache_wanted() const override { return fleet_->wants_caches() && usable(); }
  bool cache_is_of(uint64_t epoch) const override;
  std::optional<size_t> CacheKnown(const CacheMirror& mirror) override {
    return fleet_->CacheKnown(slot_, mirror.changes(), mirror.key_tokens());
  }
  std::optional<size_t> CacheChanged(const CacheMirror& mirror) override {
    return fleet_->CacheChanged(slot_, mirror.changes());
  }
  void CacheUnknown() override { fleet_->CacheUnknown(slot_); }

  // It is none of the model's servers any more: nothing is exported of it.
  void Retire();

  // A probe's answer.
  void Described(const v1::DecodeDescription& description);
  // What to ask for a report of its load with.
  v1::LoadRequest WantedReport() const;
  // That report, which was made at `as_of` or later.
  void Reported(const v1::LoadReport& report, absl::Time as_of);
  // One that came with a reply, as bytes; anything else is ignored.
  void Hinted(absl::string_view report);
  // A part of an answer came from it, which is as good as a probe's.
  void Heard();
  // A probe that was sent at `sent` was not answered in time.
  void Missed(absl::Time sent, const std::string& reason);
  // A probe or a call found it unreachable: no requests until a probe succeeds.
  void Down(const std::string& reason);

 private:
  // False where it is of another process than answered the last probe.
  bool Accept(const v1::LoadReport& report);
  // Whether another process answers there than before.
  bool IsAnother(const v1::DecodeDescription& description);
  // What health_ says now.
  void Publish(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServerName server_;
  const DecodeExpectation expectation_;
  Metrics* const metrics_;
  const GaugeFamily ready_metric_;
  const std::shared_ptr<ModelFleet> fleet_;
  const size_t slot_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Decode::Stub> stub_;
  const std::unique_ptr<v1::Load::Stub> load_stub_;
  const std::unique_ptr<v1::CacheEvents::Stub> cache_stub_;
  std::atomic<PeerHealth::State> state_{PeerHealth::State::kUnknown};
  std::atomic<int64_t> heard_ns_{0};  // of MonotonicNow()
  std::atomic<uint64_t> max_context_{0};
  std::atomic<uint32_t> max_choices_{0};
  mutable absl::Mutex mutex_;
  PeerHealth health_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> formats_ ABSL_GUARDED_BY(mutex_);
  std::string numerics_ ABSL_GUARDED_BY(mutex_);
  std::string prefill_source_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::AdapterDescription> adapters_ ABSL_GUARDED_BY(mutex_);
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;            // 0: it has not said so
  uint64_t adapter_changes_ ABSL_GUARDED_BY(mutex_) = 0;  // in this epoch
  uint64_t prefixes_end_ ABSL_GUARDED_BY(mutex_) = 0;     // as above, of the last report
  uint64_t cache_resets_ ABSL_GUARDED_BY(mutex_) = 0;     // likewise
  std::string reason_ ABSL_GUARDED_BY(mutex_) = "not probed yet";
};

}  // namespace aludel
