#include "server/config.h"

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aludel/v1/config.pb.h"
#include "kernels/core_list.h"
#include "runtime/status_macros.h"
#include "server/config_file.h"
#include "server/http_url.h"
#include "transport/peer_identity.h"

namespace aludel {
namespace {

constexpr uint64_t kMaxMs = 24ull * 60 * 60 * 1000;
constexpr uint64_t kMaxBytes = 1ull << 44;

// Ids travel as int32 and positions as uint32; nothing of today is longer.
constexpr uint64_t kMaxTokens = 1ull << 24;

LogOptions ReadLog(const ConfigSection& section, const v1::LogConfig& log) {
  section.CheckOneOf("level", {"trace", "debug", "info", "warn", "error"});
  section.CheckOneOf("format", {"text", "json"});
  return LogOptions{.level = log.level(), .json = log.format() == "json"};
}

DType ReadDType(const std::string& name) { return name == "f32" ? DType::kF32 : DType::kBf16; }

ModelOptions ReadEngine(const ConfigSection& section, const v1::EngineConfig& engine) {
  section.CheckNotEmpty("directory");
  section.Check(engine.device() == "cpu" || engine.device().rfind("cuda:", 0) == 0, "device",
                absl::StrCat("\"", engine.device(), "\""), "cpu or cuda:N");
  section.CheckRange("threads", 0, 1024);
  section.CheckOneOf("compute_dtype", {"bf16", "f32"});
  section.CheckOneOf("kv_dtype", {"bf16", "f32"});
  section.CheckOneOf("weights", {"unrounded", "int8", "int4"});
  section.Check(engine.weights() == "unrounded" || engine.device() == "cpu", "weights",
                absl::StrCat("\"", engine.weights(), "\""),
                absl::StrCat("unrounded: device ", engine.device(), " keeps no integers"));
  section.CheckRange("kv_blocks", 0, 1ull << 31);
  section.CheckRange("kv_bytes", 0, kMaxBytes);
  section.Check(engine.kv_blocks() == 0 || engine.kv_bytes() == 0, "kv_bytes",
                absl::StrCat(engine.kv_bytes(), " beside kv_blocks ", engine.kv_blocks()),
                "at most one of kv_blocks and kv_bytes");
  section.CheckRange("block_tokens", 1, 1024);
  section.Check((engine.block_tokens() & (engine.block_tokens() - 1)) == 0, "block_tokens",
                absl::StrCat(engine.block_tokens()), "a power of two");
  section.CheckRange("max_context", 0, kMaxTokens);
  section.CheckRange("chunk_tokens", 1, 65536);
  section.CheckRange("max_sequences", 1, 65536);

  ModelOptions options;
  options.directory = engine.directory();
  const absl::StatusOr<std::vector<int>> cores = ParseCoreList(engine.cores());
  section.Check(cores.ok(), "cores", absl::StrCat("\"", engine.cores(), "\""), "a list like 0-3,8");
  section.Check(!cores.ok() || cores->empty() || engine.threads() <= cores->size(), "threads",
                absl::StrCat(engine.threads()), "at most one for each of the cores");
  options.device = {.name = engine.device(),
                    .threads = static_cast<int>(engine.threads()),
                    .cores = cores.ok() ? *cores : std::vector<int>(),
                    .instructions = engine.instructions(),
                    .graphs = engine.cuda_graphs()};
  options.transformer = {.compute = ReadDType(engine.compute_dtype()),
                         .weights = ParseWeightFormat(engine.weights()),
                         .max_rows = engine.chunk_tokens()};
  options.engine = {.kv_blocks = static_cast<int64_t>(engine.kv_blocks()),
                    .block_tokens = static_cast<int>(engine.block_tokens()),
                    .kv_dtype = ReadDType(engine.kv_dtype()),
                    .max_context = static_cast<int64_t>(engine.max_context()),
                    .chunk_tokens = engine.chunk_tokens(),
                    .max_sequences = static_cast<int>(engine.max_sequences()),
                    .prefix_cache = engine.prefix_cache()};
  options.kv_bytes = engine.kv_bytes();
  return options;
}

CodecOptions ReadCodec(const ConfigSection& section, const v1::CodecConfig& codec) {
  section.CheckUnique("formats");
  CodecOptions options{.artifact = codec.artifact()};
  for (int i = 0; i < codec.formats_size(); ++i) {
    section.CheckNotEmpty("formats", i);
    options.formats.push_back(codec.formats(i));
  }
  return options;
}

// The host of "host:port", with any free port.
std::string AnyPortOf(const std::string& listen) { return listen.substr(0, listen.rfind(':')) + ":0"; }

TransportOptions ReadTransport(const ConfigSection& section, const v1::TransportConfig& transport,
                               const std::string& grpc_listen) {
  section.CheckOneOf("kind", {"tcp", "ucx", "loopback"});
  const bool ucx = transport.kind() == "ucx";
  section.Check(
      !ucx || transport.trusted_network(), "trusted_network", "false beside kind \"ucx\"",
      "true, which says that nothing else can send to the interfaces that UCX uses: malformed bytes at "
      "its ports end this process (deploy/THREATS.md); or kind \"tcp\"");
  for (const auto& [field, value] : {std::pair("ucx_transports", transport.ucx_transports()),
                                     std::pair("ucx_devices", transport.ucx_devices())}) {
    section.Check(ucx || value.empty(), field,
                  absl::StrCat("\"", value, "\" beside kind \"", transport.kind(), "\""), "kind \"ucx\"");
  }
  section.Check(transport.listen().empty() || transport.kind() == "tcp", "listen",
                absl::StrCat("\"", transport.listen(), "\" beside kind \"", transport.kind(), "\""),
                "kind \"tcp\"");
  if (!transport.listen().empty()) section.CheckHostPort("listen");
  section.CheckRange("max_inflight_sends", 1, 1 << 20);
  section.Check(transport.emulated_bytes_per_second() >= 0, "emulated_bytes_per_second",
                absl::StrCat(transport.emulated_bytes_per_second()), "0 or more");
  section.CheckRange("emulated_delay_ms", 0, 60000);
  const LinkEmulation link{.bytes_per_second = transport.emulated_bytes_per_second(),
                           .delay = absl::Milliseconds(transport.emulated_delay_ms()),
                           .lost_share = transport.emulated_lost_share(),
                           .spoiled_share = transport.emulated_spoiled_share(),
                           .doubled_share = transport.emulated_doubled_share(),
                           .seed = transport.emulated_seed()};
  for (const auto& [field, share] : {std::pair("emulated_lost_share", link.lost_share),
                                     std::pair("emulated_spoiled_share", link.spoiled_share),
                                     std::pair("emulated_doubled_share", link.doubled_share)}) {
    section.Check(share >= 0 && share <= 1.0 / 3, field, absl::StrCat(share), "0 to 1/3");
  }
  return TransportOptions{.kind = transport.kind(),
                          .listen = transport.listen().empty() ? AnyPortOf(grpc_listen) : transport.listen(),
                          .ucx_transports = transport.ucx_transports(),
                          .ucx_devices = transport.ucx_devices(),
                          .max_inflight_sends = static_cast<int>(transport.max_inflight_sends()),
                          .link = link};
}

PlannerOptions ReadPlanner(const ConfigSection& section, const v1::PlannerConfig& planner) {
  static const std::map<std::string, Fidelity> kFidelities = {{"exact", Fidelity::kExact},
                                                              {"high", Fidelity::kHigh},
                                                              {"balanced", Fidelity::kBalanced},
                                                              {"fast", Fidelity::kFast},
                                                              {"coded", Fidelity::kCoded}};
  section.CheckOneOf("fidelity", {"exact", "high", "balanced", "fast", "coded"});
  section.CheckOneOf("policy", {"first", "fastest"});
  section.CheckRange("min_remote_tokens", 0, kMaxTokens);
  section.CheckRange("native_tail_tokens", 1, kMaxTokens);
  section.Check(planner.high_kl() >= 0, "high_kl", absl::StrCat(planner.high_kl()), "0 or more");
  section.Check(planner.balanced_kl() >= planner.high_kl(), "balanced_kl",
                absl::StrCat(planner.balanced_kl()), "at least high_kl");
  PlannerOptions options{.format = planner.format(),
                         .min_remote_tokens = planner.min_remote_tokens(),
                         .native_tail_tokens = planner.native_tail_tokens(),
                         .fastest = planner.policy() == "fastest",
                         .high_kl = planner.high_kl(),
                         .balanced_kl = planner.balanced_kl()};
  const auto fidelity = kFidelities.find(planner.fidelity());
  if (fidelity != kFidelities.end()) options.fidelity = fidelity->second;
  for (const v1::FormatLoss& loss : planner.losses()) {
    section.Check(loss.has_kl() && loss.kl() >= 0 && !loss.format().empty(), "losses",
                  absl::StrCat("\"", loss.format(), "\" with kl ", loss.kl()),
                  "a format and a kl of 0 or more");
    options.losses[loss.format()] = loss.kl();
  }
  return options;
}

GrpcTlsOptions ReadGrpcTls(const ConfigSection& section, const v1::GrpcTlsConfig& tls) {
  const int given = static_cast<int>(!tls.certificate_file().empty()) +
                    static_cast<int>(!tls.key_file().empty()) + static_cast<int>(!tls.ca_file().empty());
  section.Check(given == 0 || given == 3, "certificate_file", absl::StrCat(given, " of three files"),
                "certificate_file, key_file and ca_file, or none of them");
  section.CheckRange("reload_interval_s", 1, 86400);
  return {.certificate_file = tls.certificate_file(),
          .key_file = tls.key_file(),
          .ca_file = tls.ca_file(),
          .reload_interval = absl::Seconds(tls.reload_interval_s())};
}

// Names of peers' certificates.
std::vector<std::string> ReadIdentities(const ConfigSection& section, const char* field,
                                        const google::protobuf::RepeatedPtrField<std::string>& names,
                                        const GrpcTlsOptions& tls) {
  section.CheckUnique(field);
  for (int i = 0; i < names.size(); ++i) {
    section.Check(IsIdentityPattern(names[i]), field, absl::StrCat("\"", names[i], "\""),
                  "a name or *.suffix", i);
    section.Check(tls.enabled(), field, absl::StrCat("\"", names[i], "\" without grpc_tls"),
                  "grpc_tls, as names are those of certificates", i);
  }
  return {names.begin(), names.end()};
}

// The data plane shows and asks for the certificates of gRPC.
TransportTls DataPlaneTls(const GrpcTlsOptions& tls, std::vector<std::string> peer_identities) {
  return {.certificate_file = tls.certificate_file,
          .key_file = tls.key_file,
          .ca_file = tls.ca_file,
          .reload_interval = tls.reload_interval,
          .peer_identities = std::move(peer_identities)};
}

TracingOptions ReadTracing(const ConfigSection& section, const v1::TracingConfig& tracing) {
  const std::string& endpoint = tracing.otlp_endpoint();
  const absl::Status parsed = ParseHttpUrl(endpoint).status();
  section.Check(endpoint.empty() || parsed.ok(), "otlp_endpoint", parsed.message(),
                "http://host:port/v1/traces or https://...");
  section.Check(tracing.sample_share() >= 0 && tracing.sample_share() <= 1, "sample_share",
                absl::StrCat(tracing.sample_share()), "0 to 1");
  section.CheckRange("max_queue", 1, 1 << 20);
  return {.otlp_endpoint = endpoint,
          .sample_share = endpoint.empty() ? 0 : tracing.sample_share(),
          .max_queue = static_cast<int>(tracing.max_queue()),
          .handover_trace_directory = tracing.handover_trace_directory()};
}

ShadowOptions ReadShadow(const ConfigSection& section, const v1::ShadowConfig& shadow) {
  section.Check(shadow.share() >= 0 && shadow.share() <= 1, "share", absl::StrCat(shadow.share()), "0 to 1");
  section.CheckRange("max_queue", 1, 1 << 16);
  section.CheckRange("max_wait_ms", 1, kMaxMs);
  return {.share = shadow.share(),
          .max_queue = static_cast<int>(shadow.max_queue()),
          .max_wait = absl::Milliseconds(shadow.max_wait_ms())};
}

HttpTlsOptions ReadHttpTls(const ConfigSection& section, const v1::HttpTlsConfig& tls) {
  section.Check(
      tls.certificate_file().empty() == tls.key_file().empty(), "key_file",
      absl::StrCat("\"", tls.key_file(), "\" beside certificate_file \"", tls.certificate_file(), "\""),
      "both files or neither");
  return {.certificate_file = tls.certificate_file(), .key_file = tls.key_file()};
}

HttpAccessOptions ReadHttpAccess(const ConfigSection& section, const v1::HttpAccessConfig& access) {
  for (const char* field : {"requests_per_minute", "tokens_per_minute", "max_concurrent"}) {
    section.CheckRange(field, 0, 1000000000);
  }
  return {.keys_file = access.keys_file(),
          .requests_per_minute = access.requests_per_minute(),
          .tokens_per_minute = access.tokens_per_minute(),
          .max_concurrent = static_cast<int>(access.max_concurrent())};
}

void CheckListen(const ConfigSection& root, const std::string& admin_listen) {
  root.CheckHostPort("listen");
  if (!admin_listen.empty()) root.CheckHostPort("admin_listen");
}

std::vector<std::string> ReadTargets(const ConfigSection& section, absl::string_view field,
                                     const google::protobuf::RepeatedPtrField<std::string>& targets) {
  section.CheckUnique(field);
  for (int i = 0; i < targets.size(); ++i) section.CheckTarget(field, i);
  return {targets.begin(), targets.end()};
}

std::string LastPathPart(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace

absl::StatusOr<PrefillOptions> LoadPrefillOptions(const std::string& path) {
  v1::PrefillConfig config;
  ConfigFile file(path);
  ALUDEL_RETURN_IF_ERROR(file.Parse(&config));
  const ConfigSection root = file.Root();
  CheckListen(root, config.admin_listen());
  root.CheckRange("send_arena_bytes", 4096, kMaxBytes);
  root.CheckRange("handover_window_bytes", 4096, kMaxBytes);
  root.CheckRange("frame_cache_bytes", 0, kMaxBytes);
  root.CheckRange("max_channels", 1, 65536);
  for (const char* field : {"connect_timeout_ms", "run_timeout_ms"}) root.CheckRange(field, 1, kMaxMs);
  root.CheckRange("drain_timeout_ms", 0, kMaxMs);
  root.CheckRange("watchdog_timeout_ms", 1000, kMaxMs);
  PrefillOptions options{
      .listen = config.listen(),
      .admin_listen = config.admin_listen(),
      .log = ReadLog(root.Nested("log"), config.log()),
      .model = ReadEngine(root.Nested("engine"), config.engine()),
      .codec = ReadCodec(root.Nested("codec"), config.codec()),
      .transport = ReadTransport(root.Nested("transport"), config.transport(), config.listen()),
      .send_arena_bytes = config.send_arena_bytes(),
      .handover_window_bytes = config.handover_window_bytes(),
      .frame_cache_bytes = config.frame_cache_bytes(),
      .max_channels = static_cast<int>(config.max_channels()),
      .connect_timeout = absl::Milliseconds(config.connect_timeout_ms()),
      .run_timeout = absl::Milliseconds(config.run_timeout_ms()),
      .drain_timeout = absl::Milliseconds(config.drain_timeout_ms()),
      .tracing = ReadTracing(root.Nested("tracing"), config.tracing()),
      .grpc_tls = ReadGrpcTls(root.Nested("grpc_tls"), config.grpc_tls()),
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
  options.transport.accepts = false;
  options.transport.tls = DataPlaneTls(options.grpc_tls, options.decode_identities);
  ALUDEL_RETURN_IF_ERROR(file.status());
  ALUDEL_RETURN_IF_ERROR(CheckGrpcTls(options.grpc_tls));
  options.model_name = LastPathPart(options.model.directory);
  return options;
}

absl::StatusOr<DecodeOptions> LoadDecodeOptions(const std::string& path) {
  v1::DecodeConfig config;
  ConfigFile file(path);
  ALUDEL_RETURN_IF_ERROR(file.Parse(&config));
  const ConfigSection root = file.Root();
  CheckListen(root, config.admin_listen());
  root.CheckRange("receive_arena_bytes", 4096, kMaxBytes);
  root.CheckRange("handover_window_bytes", 4096, kMaxBytes);
  for (const char* field : {"handover_timeout_ms", "request_timeout_ms", "probe_interval_ms",
                            "probe_max_interval_ms", "probe_timeout_ms"}) {
    root.CheckRange(field, 1, kMaxMs);
  }
  root.Check(config.probe_max_interval_ms() >= config.probe_interval_ms(), "probe_max_interval_ms",
             absl::StrCat(config.probe_max_interval_ms()),
             absl::StrCat("at least probe_interval_ms, ", config.probe_interval_ms()));
  root.CheckRange("max_stream_backlog", 1, 1 << 24);
  root.CheckRange("drain_timeout_ms", 0, kMaxMs);
  root.CheckRange("watchdog_timeout_ms", 1000, kMaxMs);
  DecodeOptions options{
      .listen = config.listen(),
      .admin_listen = config.admin_listen(),
      .log = ReadLog(root.Nested("log"), config.log()),
      .model = ReadEngine(root.Nested("engine"), config.engine()),
      .served_model_name = config.served_model_name(),
      .codec = ReadCodec(root.Nested("codec"), config.codec()),
      .transport = ReadTransport(root.Nested("transport"), config.transport(), config.listen()),
      .receive_arena_bytes = config.receive_arena_bytes(),
      .handover_window_bytes = config.handover_window_bytes(),
      .prefill_targets = ReadTargets(root, "prefill_targets", config.prefill_targets()),
      .planner = ReadPlanner(root.Nested("planner"), config.planner()),
      .handover_timeout = absl::Milliseconds(config.handover_timeout_ms()),
      .request_timeout = absl::Milliseconds(config.request_timeout_ms()),
      .probe_interval = absl::Milliseconds(config.probe_interval_ms()),
      .probe_max_interval = absl::Milliseconds(config.probe_max_interval_ms()),
      .probe_timeout = absl::Milliseconds(config.probe_timeout_ms()),
      .max_stream_backlog = static_cast<int>(config.max_stream_backlog()),
      .drain_timeout = absl::Milliseconds(config.drain_timeout_ms()),
      .tracing = ReadTracing(root.Nested("tracing"), config.tracing()),
      .shadow = ReadShadow(root.Nested("shadow"), config.shadow()),
      .grpc_tls = ReadGrpcTls(root.Nested("grpc_tls"), config.grpc_tls()),
      .watchdog_timeout = absl::Milliseconds(config.watchdog_timeout_ms()),
      .encrypt_frames = config.encrypt_frames()};
  root.Check(!options.encrypt_frames || options.grpc_tls.enabled(), "encrypt_frames", "true without grpc_tls",
             "grpc_tls, as keys travel over gRPC");
  root.Check(!options.encrypt_frames || options.transport.kind == "ucx", "encrypt_frames",
             absl::StrCat("true beside transport.kind \"", options.transport.kind, "\""),
             "false, as grpc_tls encrypts its whole connections; or transport.kind \"ucx\"");
  options.gateway_identities =
      ReadIdentities(root, "gateway_identities", config.gateway_identities(), options.grpc_tls);
  root.Check(config.prefill_identities().empty() || options.transport.kind == "tcp", "prefill_identities",
             absl::StrCat("some beside transport.kind \"", options.transport.kind, "\""),
             "transport.kind \"tcp\", as UCX shows no certificates");
  options.transport.tls =
      DataPlaneTls(options.grpc_tls,
                   ReadIdentities(root, "prefill_identities", config.prefill_identities(), options.grpc_tls));
  ALUDEL_RETURN_IF_ERROR(file.status());
  ALUDEL_RETURN_IF_ERROR(CheckGrpcTls(options.grpc_tls));
  if (options.served_model_name.empty()) options.served_model_name = LastPathPart(options.model.directory);
  return options;
}

absl::StatusOr<GatewayOptions> LoadGatewayOptions(const std::string& path) {
  v1::GatewayConfig config;
  ConfigFile file(path);
  ALUDEL_RETURN_IF_ERROR(file.Parse(&config));
  const ConfigSection root = file.Root();
  CheckListen(root, config.admin_listen());
  root.CheckAtLeastOne("models");
  root.CheckRange("max_body_bytes", 1, 1ull << 30);
  root.Check(config.max_total_body_bytes() >= config.max_body_bytes(), "max_total_body_bytes",
             absl::StrCat(config.max_total_body_bytes()),
             absl::StrCat("at least max_body_bytes, ", config.max_body_bytes()));
  root.CheckRange("max_header_bytes", 256, 1ull << 20);
  for (const char* field : {"max_connections", "max_requests", "max_stream_backlog"}) {
    root.CheckRange(field, 1, 1 << 24);
  }
  for (const char* field : {"read_timeout_ms", "idle_timeout_ms", "request_timeout_ms", "probe_timeout_ms",
                            "probe_interval_ms"}) {
    root.CheckRange(field, 1, kMaxMs);
  }
  for (const char* field : {"drain_timeout_ms", "lame_duck_ms"}) root.CheckRange(field, 0, kMaxMs);
  root.CheckRange("reload_interval_ms", 10, kMaxMs);
  for (const char* field : {"io_threads", "handler_threads"}) root.CheckRange(field, 1, 256);
  root.CheckUnique("cors_allowed_origins");
  GatewayOptions options{
      .listen = config.listen(),
      .log = ReadLog(root.Nested("log"), config.log()),
      .prefill_targets = ReadTargets(root, "prefill_targets", config.prefill_targets()),
      .max_body_bytes = config.max_body_bytes(),
      .max_total_body_bytes = static_cast<int64_t>(config.max_total_body_bytes()),
      .max_header_bytes = config.max_header_bytes(),
      .max_connections = static_cast<int>(config.max_connections()),
      .max_requests = static_cast<int>(config.max_requests()),
      .read_timeout = absl::Milliseconds(config.read_timeout_ms()),
      .idle_timeout = absl::Milliseconds(config.idle_timeout_ms()),
      .request_timeout = absl::Milliseconds(config.request_timeout_ms()),
      .probe_timeout = absl::Milliseconds(config.probe_timeout_ms()),
      .probe_interval = absl::Milliseconds(config.probe_interval_ms()),
      .max_stream_backlog = static_cast<int>(config.max_stream_backlog()),
      .drain_timeout = absl::Milliseconds(config.drain_timeout_ms()),
      .lame_duck = absl::Milliseconds(config.lame_duck_ms()),
      .tls = ReadHttpTls(root.Nested("tls"), config.tls()),
      .access = ReadHttpAccess(root.Nested("access"), config.access()),
      .cors_allowed_origins = {config.cors_allowed_origins().begin(), config.cors_allowed_origins().end()},
      .admin_listen = config.admin_listen(),
      .reload_interval = absl::Milliseconds(config.reload_interval_ms()),
      .io_threads = static_cast<int>(config.io_threads()),
      .handler_threads = static_cast<int>(config.handler_threads()),
      .tracing = ReadTracing(root.Nested("tracing"), config.tracing()),
      .grpc_tls = ReadGrpcTls(root.Nested("grpc_tls"), config.grpc_tls())};
  for (int i = 0; i < config.models_size(); ++i) {
    const ConfigSection section = root.Nested("models", i);
    section.CheckNotEmpty("name");
    section.CheckNotEmpty("directory");
    section.CheckAtLeastOne("decode_targets");
    section.CheckOneOf("special_tokens_in_content", {"text", "control"});
    const v1::ServedModel& model = config.models(i);
    for (const ServedModelOptions& other : options.models) {
      section.Check(other.name != model.name(), "name", absl::StrCat("\"", model.name(), "\" twice"),
                    "each name once");
    }
    options.models.push_back(
        {.name = model.name(),
         .directory = model.directory(),
         .decode_targets = ReadTargets(section, "decode_targets", model.decode_targets()),
         .generation_defaults = model.generation_defaults(),
         .special_tokens_as_text = model.special_tokens_in_content() == "text"});
  }
  ALUDEL_RETURN_IF_ERROR(file.status());
  ALUDEL_RETURN_IF_ERROR(CheckGrpcTls(options.grpc_tls));
  return options;
}

}  // namespace aludel
