#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/config/decode_options.h"
#include "server/decode/codes/kept_codes.h"
#include "server/decode/constraint_cache.h"
#include "server/decode/decode_metrics.h"
#include "server/decode/handoff/kv_receiver.h"
#include "server/decode/load/cached_prompts.h"
#include "server/decode/load/load_reporter.h"
#include "server/decode/plan/chosen_artifact.h"
#include "server/decode/plan/cost_model.h"
#include "server/decode/plan/known_stores.h"
#include "server/decode/plan/prefill_pool.h"
#include "server/decode/plan/trials.h"
#include "server/decode/request_adapter.h"
#include "server/decode/shadow_checker.h"
#include "server/handoff/cache_epoch.h"
#include "server/handoff/frame_arena.h"
#include "server/host/adapter_pool.h"
#include "server/host/model_host.h"
#include "server/observe/otlp_exporter.h"
#include "server/process/timer.h"
#include "server/process/work_clock.h"

namespace aludel {

// What every request of a decode server uses. Outlives all sessions.
struct DecodeContext {
  const DecodeOptions* options = nullptr;
  DecodeHost* model = nullptr;
  AdapterPool* adapters = nullptr;
  KvReceiver* receiver = nullptr;
  FrameArena* arena = nullptr;
  std::string receiver_address;
  PrefillPool* prefill_pool = nullptr;
  KeptCodes* codes = nullptr;                 // null: received codes are not kept
  const KnownStores* known_stores = nullptr;  // null: prefill servers are not asked what they have stored
  ConstraintCache* constraints = nullptr;
  CacheEpoch* cache_epoch = nullptr;
  CachedPrompts* cached_prompts = nullptr;
  CostModel* costs = nullptr;
  ChosenArtifact* chosen = nullptr;
  Timer* timer = nullptr;
  const DecodeMetrics* metrics = nullptr;
  LoadReporter* load = nullptr;
  OtlpExporter* traces = nullptr;   // may be null
  ShadowChecker* shadow = nullptr;  // may be null
  std::atomic<int64_t>* sessions_open = nullptr;
  Trials* trials = nullptr;
  std::atomic<uint32_t>* handoff_traces = nullptr;  // written so far
  WorkClock* handlers = nullptr;                    // of gRPC's threads, in methods of the service
  std::function<absl::Status()> health;             // reported to peers by Describe
};

// The wire formats that one request, of the model or of an adapter over it, can come in: those of one artifact, however
// it is switched meanwhile. Holds them.
class SequenceCodecs {
 public:
  // Of the model those that most of `targets` speak for (ChooseSet); where they lack the `format` that a request forces, those
  // that have it. "": none is forced.
  SequenceCodecs(const DecodeContext& context, const RequestAdapter& adapter,
                 absl::Span<const PlanTarget> targets, absl::string_view format);

  // Best first.
  std::vector<std::string> Names() const;
  // Null where it cannot.
  const DecoderFactory* Find(const std::string& name) const;
  // What Find's results live in.
  const std::shared_ptr<const void>& owner() const { return owner_; }
  // PlannerOptions::losses of an adapter.
  const std::map<std::string, double>& losses() const { return *losses_; }
  // Leaves the targets what they offer of these.
  void Narrow(std::vector<PlanTarget>* targets) const;

 private:
  std::shared_ptr<const void> owner_;
  const std::vector<std::unique_ptr<DecoderFactory>>* codecs_ = nullptr;  // the owner's
  const std::map<std::string, double>* losses_ = nullptr;                 // the owner's; null: the model's
};

// Of an artifact that is being switched, keeps the version before while that is what most of `targets` speak for (ChooseSet),
// though no request comes. To be called regularly.
void KeepWhatPeersHave(const DecodeContext& context, absl::Span<const PlanTarget> targets);

// The wire formats that this server can take, for its model or for adapters over it, with their encoders' hashes: of the
// current artifact, then of the one before while it is kept. Each once.
std::vector<FormatOffer> ServerFormats(const DecodeHost& model, const AdapterPool& adapters);

}  // namespace aludel
