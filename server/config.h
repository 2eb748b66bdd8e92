#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine.h"
#include "runtime/model/transformer.h"
#include "server/grpc_credentials.h"
#include "transport/address_pattern.h"
#include "transport/transport.h"

namespace aludel {

// Settings of the three servers as plain values, read from a textproto of proto/aludel/v1/config.proto, where
// every setting has its unit, default and owner. Loading checks everything that needs no other file: an error
// names the file, the line where there is one, the field, what was found and what was expected. An unknown
// field is an error.

struct LogOptions {
  std::string level = "info";
  bool json = false;
};

struct TracingOptions {
  std::string otlp_endpoint;  // "": no traces
  double sample_share = 0;
  int max_queue = 0;
  std::string handover_trace_directory;  // "": none
};

struct ShadowOptions {
  double share = 0;
  int max_queue = 0;
  absl::Duration max_wait;
};

// The model of a server and the engine over it.
struct ModelOptions {
  std::string directory;
  DeviceOptions device;
  TransformerOptions transformer;
  EngineOptions engine;
  uint64_t kv_bytes =
      0;  // not 0: engine.kv_blocks is this many bytes' worth, once the model's shape is known
};

struct CodecOptions {
  std::string artifact;
  std::vector<std::string> formats;  // empty: all
};

// What may be lost of a cache. kFast and kCoded: anything.
enum class Fidelity : uint8_t { kExact, kHigh, kBalanced, kFast, kCoded };

struct PlannerOptions {
  Fidelity fidelity = Fidelity::kCoded;
  std::string format;  // "": the first shared one
  int64_t min_remote_tokens = 32;
  int64_t native_tail_tokens = 1;
  bool fastest = false;                  // by prediction; else the first format that fits
  std::map<std::string, double> losses;  // format -> KL in nats; "raw" and others may be missing
  double high_kl = 0.02;
  double balanced_kl = 0.1;
};

struct PrefillOptions {
  std::string listen;
  std::string admin_listen;  // "": none
  LogOptions log;
  ModelOptions model;
  std::string model_name;  // last part of model.directory, for metrics
  CodecOptions codec;
  TransportOptions transport;
  uint64_t send_arena_bytes = 0;
  uint64_t handover_window_bytes = 0;
  uint64_t frame_cache_bytes = 0;  // 0: none
  std::vector<std::string> decode_identities;
  std::vector<AddressPattern> receiver_addresses;
  int max_channels = 0;
  absl::Duration connect_timeout;
  absl::Duration run_timeout;
  absl::Duration drain_timeout;
  TracingOptions tracing;
  GrpcTlsOptions grpc_tls;
  absl::Duration watchdog_timeout;
};

struct DecodeOptions {
  std::string listen;
  std::string admin_listen;  // "": none
  LogOptions log;
  ModelOptions model;
  std::string served_model_name;  // never empty
  CodecOptions codec;
  TransportOptions transport;
  uint64_t receive_arena_bytes = 0;
  uint64_t handover_window_bytes = 0;
  std::vector<std::string> prefill_targets;
  PlannerOptions planner;
  absl::Duration handover_timeout;
  absl::Duration request_timeout;
  absl::Duration probe_interval;
  absl::Duration probe_max_interval;
  absl::Duration probe_timeout;
  int max_stream_backlog = 0;
  absl::Duration drain_timeout;
  TracingOptions tracing;
  ShadowOptions shadow;
  GrpcTlsOptions grpc_tls;
  absl::Duration watchdog_timeout;
  bool encrypt_frames = false;
  std::vector<std::string> gateway_identities;
};

struct ServedModelOptions {
  std::string name;
  std::string directory;
  std::vector<std::string> decode_targets;
  bool generation_defaults = true;
  bool special_tokens_as_text = true;  // in what chat requests say
};

// Both empty: plain HTTP.
struct HttpTlsOptions {
  std::string certificate_file;
  std::string key_file;
};

struct HttpAccessOptions {
  std::string keys_file;  // "": no key is asked for
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;
  int max_concurrent = 0;
};

struct GatewayOptions {
  std::string listen;
  LogOptions log;
  std::vector<ServedModelOptions> models;
  std::vector<std::string> prefill_targets;
  int64_t max_body_bytes = 0;
  int64_t max_total_body_bytes = 0;
  int64_t max_header_bytes = 0;
  int max_connections = 0;
  int max_requests = 0;
  absl::Duration read_timeout;
  absl::Duration idle_timeout;
  absl::Duration request_timeout;
  absl::Duration probe_timeout;
  absl::Duration probe_interval;
  int max_stream_backlog = 0;
  absl::Duration drain_timeout;
  absl::Duration lame_duck;
  HttpTlsOptions tls;
  HttpAccessOptions access;
  std::vector<std::string> cors_allowed_origins;
  std::string admin_listen;  // "": /metrics on `listen`
  absl::Duration reload_interval;
  int io_threads = 0;
  int handler_threads = 0;
  TracingOptions tracing;
  GrpcTlsOptions grpc_tls;
};

absl::StatusOr<PrefillOptions> LoadPrefillOptions(const std::string& path);
absl::StatusOr<DecodeOptions> LoadDecodeOptions(const std::string& path);
absl::StatusOr<GatewayOptions> LoadGatewayOptions(const std::string& path);

}  // namespace aludel
