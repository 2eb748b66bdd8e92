#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/config/decode_options.h"
#include "server/decode/constraint_cache.h"
#include "server/decode/decode_metrics.h"
#include "server/decode/handoff/kv_receiver.h"
#include "server/decode/load/load_reporter.h"
#include "server/decode/plan/cost_model.h"
#include "server/decode/plan/prefill_pool.h"
#include "server/decode/plan/trials.h"
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
  ConstraintCache* constraints = nullptr;
  CacheEpoch* cache_epoch = nullptr;
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

// The names of this server's wire formats, best first.
inline std::vector<std::string> FormatNames(const DecodeContext& context) {
  std::vector<std::string> names;
  for (const auto& codec : context.model->codecs()) names.push_back(codec->spec().name);
  return names;
}

}  // namespace aludel
