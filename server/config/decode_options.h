#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/common_options.h"
#include "server/config/model_options.h"
#include "server/config/store_options.h"
#include "server/rpc/call_limit.h"
#include "server/rpc/grpc_credentials.h"
#include "transport/transport_options.h"

namespace aludel {

struct ShadowOptions {
  double share = 0;
  int max_queue = 0;
  absl::Duration max_wait;
};

// Local prefill beside late handoffs.
struct HedgeOptions {
  int max_running = 0;    // 0: none
  double late_share = 0;  // of the prediction
  absl::Duration late_min;
};

// What may be lost of a cache. kFast: anything.
enum class Fidelity : uint8_t { kExact, kHigh, kBalanced, kFast };

struct PlannerOptions {
  Fidelity fidelity = Fidelity::kFast;
  std::string format;  // "": the first shared one
  int64_t min_remote_tokens = 0;
  int64_t recomputed_tail_tokens = 1;
  bool store_events = true;              // prefill servers are asked what they have stored
  bool by_prediction = false;            // else the first format that fits, from the least busy server
  bool hedged = false;                   // a handoff that is late costs little more than local prefill
  std::map<std::string, double> losses;  // format -> KL in nats; "raw" and others may be missing
  double high_kl = 0;
  double balanced_kl = 0;
};

struct NamedAdapter {
  std::string name;
  std::string directory;
  std::string cache_of = "adapter";  // or "base", or "base_always"
};

// What may be taken of the link from prefill servers of a site.
struct SiteLimit {
  std::string site;
  uint64_t max_bytes_per_second = 0;
};

struct DecodeOptions {
  std::string listen;
  std::string admin_listen;  // "": none
  LogOptions log;
  ModelOptions model;
  std::string served_model_name;       // never empty
  std::vector<NamedAdapter> adapters;  // each name once, and not the model's
  int max_resident_adapters = 0;
  std::string adapter_root;  // "": none are loaded at run time
  CodecOptions codec;
  TransportOptions transport;
  uint64_t receive_arena_bytes = 0;
  uint64_t handoff_window_bytes = 0;
  std::vector<std::string> prefill_targets;
  std::vector<SiteLimit> site_limits;  // each site once
  PlannerOptions planner;
  absl::Duration handoff_timeout;
  absl::Duration request_timeout;
  absl::Duration probe_interval;
  absl::Duration probe_max_interval;
  absl::Duration probe_timeout;
  int max_stream_backlog = 0;
  absl::Duration drain_timeout;
  TracingOptions tracing;
  ShadowOptions shadow;
  HedgeOptions hedge;
  GrpcTlsOptions grpc_tls;
  GrpcLimits grpc_limits;
  absl::Duration watchdog_timeout;
  bool encrypt_frames = false;
  std::vector<std::string> gateway_identities;
  StoreOptions store;  // of received codes
};

absl::StatusOr<DecodeOptions> LoadDecodeOptions(const std::string& path);

}  // namespace aludel
