#include "server/config/decode_options.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "aludel/v1/config.pb.h"
#include "runtime/status_macros.h"
#include "server/config/common_sections.h"
#include "server/config/config_file.h"
#include "server/config/model_sections.h"

namespace aludel {
namespace {

PlannerOptions ReadPlanner(const ConfigSection& section, const v1::PlannerConfig& planner) {
  static const std::map<std::string, Fidelity> kFidelities = {{"exact", Fidelity::kExact},
                                                              {"high", Fidelity::kHigh},
                                                              {"balanced", Fidelity::kBalanced},
                                                              {"fast", Fidelity::kFast}};
  PlannerOptions options{.format = planner.format(),
                         .min_remote_tokens = planner.min_remote_tokens(),
                         .recomputed_tail_tokens = planner.recomputed_tail_tokens(),
                         .store_events = planner.store_events(),
                         .by_prediction = planner.by_prediction(),
                         .high_kl = planner.high_kl(),
                         .balanced_kl = planner.balanced_kl()};
  const auto fidelity = kFidelities.find(planner.fidelity());
  if (fidelity != kFidelities.end()) options.fidelity = fidelity->second;
  for (const v1::FormatLoss& loss : planner.losses()) {
    section.Check(loss.has_kl(), "losses", absl::StrCat("\"", loss.format(), "\" without kl"),
                  "a kl in nats");
    options.losses[loss.format()] = loss.kl();
  }
  return options;
}

ShadowOptions ReadShadow(const v1::ShadowConfig& shadow) {
  return {.share = shadow.share(),
          .max_queue = static_cast<int>(shadow.max_queue()),
          .max_wait = absl::Milliseconds(shadow.max_wait_ms())};
}

HedgeOptions ReadHedge(const v1::HedgeConfig& hedge) {
  return {.max_running = static_cast<int>(hedge.max_running()),
          .late_share = hedge.late_share(),
          .late_min = absl::Milliseconds(hedge.late_min_ms())};
}

std::vector<NamedAdapter> ReadAdapters(const ConfigSection& root, const v1::DecodeConfig& config,
                                       const ModelOptions& model, const std::string& served_name) {
  std::vector<NamedAdapter> adapters;
  for (int i = 0; i < config.adapters_size(); ++i) {
    const ConfigSection section = root.Nested("adapters", i);
    const v1::NamedAdapter& adapter = config.adapters(i);
    const bool taken = adapter.name() == served_name ||
                       std::any_of(adapters.begin(), adapters.end(),
                                   [&](const NamedAdapter& other) { return other.name == adapter.name(); });
    section.Check(!taken, "name", absl::StrCat("\"", adapter.name(), "\" twice"),
                  "each name once, and another one than the model's");
    adapters.push_back({adapter.name(), adapter.directory(), adapter.cache_of()});
  }
  root.Check((adapters.empty() && config.adapter_root().empty()) || model.adapter.empty(), "adapters",
             "some, or adapter_root, beside engine.adapter", "one or the other");
  return adapters;
}

std::vector<SiteLimit> ReadSiteLimits(const ConfigSection& root, const v1::DecodeConfig& config) {
  std::vector<SiteLimit> limits;
  for (int i = 0; i < config.site_limits_size(); ++i) {
    const v1::SiteLimit& limit = config.site_limits(i);
    const bool taken = std::any_of(limits.begin(), limits.end(),
                                   [&](const SiteLimit& other) { return other.site == limit.site(); });
    root.Nested("site_limits", i)
        .Check(!taken, "site", absl::StrCat("\"", limit.site(), "\" twice"), "each site once");
    limits.push_back({limit.site(), limit.max_bytes_per_second()});
  }
  return limits;
}

}  // namespace

absl::StatusOr<DecodeOptions> LoadDecodeOptions(const std::string& path) {
  v1::DecodeConfig config;
  ConfigFile file(path);
  ALUDEL_RETURN_IF_ERROR(file.Parse(&config));
  const ConfigSection root = file.Root();
  DecodeOptions options{
      .listen = config.listen(),
      .admin_listen = config.admin_listen(),
      .log = ReadLog(config.log()),
      .model = ReadEngine(root.Nested("engine"), config.engine()),
      .served_model_name = config.served_model_name(),
      .max_resident_adapters = static_cast<int>(config.max_resident_adapters()),
      .adapter_root = config.adapter_root(),
      .codec = ReadCodec(config.codec()),
      .transport = ReadTransport(root.Nested("transport"), config.transport(), config.listen()),
      .handoff_window_bytes = config.handoff_window_bytes(),
      .prefill_targets = {config.prefill_targets().begin(), config.prefill_targets().end()},
      .planner = ReadPlanner(root.Nested("planner"), config.planner()),
      .handoff_timeout = absl::Milliseconds(config.handoff_timeout_ms()),
      .request_timeout = absl::Milliseconds(config.request_timeout_ms()),
      .probe_interval = absl::Milliseconds(config.probe_interval_ms()),
      .probe_max_interval = absl::Milliseconds(config.probe_max_interval_ms()),
      .probe_timeout = absl::Milliseconds(config.probe_timeout_ms()),
      .max_stream_backlog = static_cast<int>(config.max_stream_backlog()),
      .drain_timeout = absl::Milliseconds(config.drain_timeout_ms()),
      .tracing = ReadTracing(root.Nested("tracing"), config.tracing()),
      .shadow = ReadShadow(config.shadow()),
      .hedge = ReadHedge(config.hedge()),
      .grpc_tls = ReadGrpcTls(root.Nested("grpc_tls"), config.grpc_tls()),
      .grpc_limits = ReadGrpcLimits(config.grpc_limits()),
      .watchdog_timeout = absl::Milliseconds(config.watchdog_timeout_ms()),
      .encrypt_frames = config.encrypt_frames()};
  options.receive_arena_bytes =
      ReadArenaBytes(options.model, config.has_receive_arena_bytes(), config.receive_arena_bytes());
  options.model.engine.max_hedges = options.hedge.max_running;
  options.planner.hedged = options.hedge.max_running > 0;
  root.Check(!options.encrypt_frames || options.grpc_tls.enabled(), "encrypt_frames", "true without grpc_tls",
             "grpc_tls, as keys travel over gRPC");
  root.Check(!options.encrypt_frames || options.transport.kind == "ucx", "encrypt_frames",
             absl::StrCat("true beside transport.kind \"", options.transport.kind, "\""),
             "false, as grpc_tls encrypts its whole connections; or transport.kind \"ucx\"");
  if (config.store().has_memory_bytes() || config.store().has_disk()) {
    options.store = ReadStore(root.Nested("store"), config.store());
  }
  root.Nested("store").Nested("remote").Check(
      config.store().remote().address().empty(), "address",
      absl::StrCat("\"", config.store().remote().address(), "\""),
      "none: a decode server keeps what it received for itself, and prefill servers share a remote");
  options.gateway_identities =
      ReadIdentities(root, "gateway_identities", config.gateway_identities(), options.grpc_tls);
  root.Check(config.prefill_identities().empty() || options.transport.kind == "tcp", "prefill_identities",
             absl::StrCat("some beside transport.kind \"", options.transport.kind, "\""),
             "transport.kind \"tcp\", as UCX shows no certificates");
  options.transport.tls =
      DataPlaneTls(options.grpc_tls,
                   ReadIdentities(root, "prefill_identities", config.prefill_identities(), options.grpc_tls));
  if (options.served_model_name.empty()) options.served_model_name = options.model.Name();
  options.adapters = ReadAdapters(root, config, options.model, options.served_model_name);
  options.site_limits = ReadSiteLimits(root, config);
  options.codec.adapters = !options.adapters.empty() || !options.adapter_root.empty();
  ALUDEL_RETURN_IF_ERROR(file.status());
  ALUDEL_RETURN_IF_ERROR(CheckGrpcTls(options.grpc_tls));
  return options;
}

}  // namespace aludel
