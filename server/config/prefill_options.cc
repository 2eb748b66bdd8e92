#include "server/config/prefill_options.h"

#include "absl/strings/str_cat.h"
#include "aludel/v1/config.pb.h"
#include "runtime/status_macros.h"
#include "server/config/common_sections.h"
#include "server/config/config_file.h"
#include "server/config/model_sections.h"

namespace aludel {

absl::StatusOr<PrefillOptions> LoadPrefillOptions(const std::string& path) {
  v1::PrefillConfig config;
  ConfigFile file(path);
  ALUDEL_RETURN_IF_ERROR(file.Parse(&config));
  const ConfigSection root = file.Root();
  PrefillOptions options{
      .listen = config.listen(),
      .admin_listen = config.admin_listen(),
      .log = ReadLog(config.log()),
      .model = ReadEngine(root.Nested("engine"), config.engine()),
      .codec = ReadCodec(config.codec()),
      .transport = ReadTransport(root.Nested("transport"), config.transport(), config.listen()),
      .handoff_window_bytes = config.handoff_window_bytes(),
      .store = ReadStore(root.Nested("store"), config.store()),
      .site = config.site(),
      .max_channels = static_cast<int>(config.max_channels()),
      .connect_timeout = absl::Milliseconds(config.connect_timeout_ms()),
      .run_timeout = absl::Milliseconds(config.run_timeout_ms()),
      .drain_timeout = absl::Milliseconds(config.drain_timeout_ms()),
      .tracing = ReadTracing(root.Nested("tracing"), config.tracing()),
      .grpc_tls = ReadGrpcTls(root.Nested("grpc_tls"), config.grpc_tls()),
      .grpc_limits = ReadGrpcLimits(config.grpc_limits()),
      .watchdog_timeout = absl::Milliseconds(config.watchdog_timeout_ms())};
  root.Nested("transport")
      .Check(config.transport().listen().empty(), "listen",
             absl::StrCat("\"", config.transport().listen(), "\""),
             "nothing: a prefill server listens nowhere on the data plane");
  options.decode_identities =
      ReadIdentities(root, "decode_identities", config.decode_identities(), options.grpc_tls);
  for (int i = 0; i < config.receiver_addresses_size(); ++i) {
    const absl::StatusOr<AddressPattern> pattern = AddressPattern::Parse(config.receiver_addresses(i));
    root.Check(pattern.ok(), "receiver_addresses", absl::StrCat("\"", config.receiver_addresses(i), "\""),
               "an IP address, address/bits or address:port", i);
    if (pattern.ok()) options.receiver_addresses.push_back(*pattern);
  }
  options.send_arena_bytes =
      ReadArenaBytes(options.model, config.has_send_arena_bytes(), config.send_arena_bytes());
  options.model.engine.warm_up_decoding = false;  // it chooses no tokens
  options.transport.accepts = false;
  options.transport.tls = DataPlaneTls(options.grpc_tls, options.decode_identities);
  ALUDEL_RETURN_IF_ERROR(file.status());
  ALUDEL_RETURN_IF_ERROR(CheckGrpcTls(options.grpc_tls));
  options.model_name = options.model.Name();
  return options;
}

}  // namespace aludel
