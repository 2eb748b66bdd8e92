#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/common_options.h"
#include "server/config/model_options.h"
#include "server/config/store_options.h"
#include "server/rpc/call_limit.h"
#include "server/rpc/grpc_credentials.h"
#include "transport/address_pattern.h"
#include "transport/transport_options.h"

namespace aludel {

struct PrefillOptions {
  std::string listen;
  std::string admin_listen;  // "": none
  LogOptions log;
  ModelOptions model;
  std::string model_name;  // model.Name(), for metrics
  CodecOptions codec;
  TransportOptions transport;
  uint64_t send_arena_bytes = 0;
  uint64_t handoff_window_bytes = 0;
  StoreOptions store;
  std::string site;  // "": not said
  std::vector<std::string> decode_identities;
  std::vector<AddressPattern> receiver_addresses;
  int max_channels = 0;
  absl::Duration connect_timeout;
  absl::Duration run_timeout;
  absl::Duration drain_timeout;
  TracingOptions tracing;
  GrpcTlsOptions grpc_tls;
  GrpcLimits grpc_limits;
  absl::Duration watchdog_timeout;
};

absl::StatusOr<PrefillOptions> LoadPrefillOptions(const std::string& path);

}  // namespace aludel
