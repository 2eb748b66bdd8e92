#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/common_options.h"
#include "server/rpc/grpc_credentials.h"

namespace aludel {

struct ServedModelOptions {
  std::string name;
  std::string directory;
  std::vector<std::string> decode_targets;
  bool generation_defaults = false;
  bool special_tokens_as_text = false;  // in what chat requests say
  absl::Duration max_ttft = absl::InfiniteDuration();
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
  int max_n = 0;
  bool may_set_priority = true;
};

struct RoutingOptions {
  std::string policy;  // as config.proto has it
  absl::Duration objective_ttft;
  bool cache_events = true;
};

struct CaptureOptions {
  std::string file;  // "": nothing is captured
  int64_t max_bytes = 0;
  double share = 1;
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
  size_t max_answer_bytes = 0;
  size_t max_stored_responses = 0;  // 0: none
  size_t max_stored_response_bytes = 0;
  absl::Duration stored_response_ttl;
  int max_waiting = 0;  // 0: none
  int64_t max_waiting_tokens = 0;
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
  RoutingOptions routing;
  CaptureOptions capture;
  TracingOptions tracing;
  GrpcTlsOptions grpc_tls;
  absl::Duration watchdog_timeout;
};

absl::StatusOr<GatewayOptions> LoadGatewayOptions(const std::string& path);

}  // namespace aludel
