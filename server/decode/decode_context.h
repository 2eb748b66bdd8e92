#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/config/decode_options.h"
#include "server/decode/codes/kept_codes.h"
#include "server/decode/constraint_cache.h"
#include "server/decode/decode_metrics.h"
#include "server/decode/handoff/kv_receiver.h"
#include "server/decode/load/cached_prompts.h"
#include "server/decode/load/load_reporter.h"
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

// The wire formats that a sequence of the model, or of an adapter over it, can come in.
class SequenceCodecs {
 public:
  // Both must outlive it.
  SequenceCodecs(const DecodeContext& context, const RequestAdapter& adapter)
      : codecs_(adapter.coded() == nullptr ? context.model->codecs() : adapter.coded()->codecs()) {}

  // Best first.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& codec : codecs_) names.push_back(codec->spec().name);
    return names;
  }
  // Null where it cannot.
  const DecoderFactory* Find(const std::string& name) const {
    for (const auto& codec : codecs_) {
      if (codec->spec().name == name) return codec.get();
    }
    return nullptr;
  }

 private:
  const std::vector<std::unique_ptr<DecoderFactory>>& codecs_;
};

// The wire formats that this server can take, for its model or for adapters over it, with their encoders' hashes.
inline std::vector<AdapterCodecs::Format> ServerFormats(const DecodeHost& model,
                                                        const AdapterPool& adapters) {
  std::vector<AdapterCodecs::Format> formats;
  for (const auto& codec : model.codecs())
    formats.push_back({codec->spec().name, codec->spec().artifact_hash});
  for (const AdapterCodecs::Format& format : adapters.formats()) {
    if (model.FindCodec(format.name) == nullptr) formats.push_back(format);
  }
  return formats;
}

}  // namespace aludel
