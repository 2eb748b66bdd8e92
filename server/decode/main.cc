#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/config.pb.h"
#include "runtime/codec/open_codec.h"
#include "runtime/status_macros.h"
#include "server/config/decode_options.h"
#include "server/config/run_server.h"
#include "server/decode/codes/kept_codes.h"
#include "server/decode/decode_service.h"
#include "server/decode/handoff/kv_receiver.h"
#include "server/decode/load/cached_prompts.h"
#include "server/decode/load/load_reporter.h"
#include "server/decode/load/load_service.h"
#include "server/decode/plan/chosen_artifact.h"
#include "server/decode/plan/known_stores.h"
#include "server/decode/plan/prefill_pool.h"
#include "server/handoff/caller_identity.h"
#include "server/handoff/frame_arena.h"
#include "server/handoff/handoff_metrics.h"
#include "server/handoff/random.h"
#include "server/host/adapter_codecs.h"
#include "server/host/arena_room.h"
#include "server/host/artifact_watch.h"
#include "server/host/device_watch.h"
#include "server/host/engine_metrics.h"
#include "server/host/loading.h"
#include "server/host/model_host.h"
#include "server/observe/admin.h"
#include "server/observe/metrics.h"
#include "server/observe/named_series.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/watchdog.h"
#include "server/process/exit_limit.h"
#include "server/process/stop_signal.h"
#include "server/process/timer.h"
#include "server/process/work_clock.h"
#include "server/rpc/cache_events/cache_event_service.h"
#include "server/rpc/cache_events/key_log.h"
#include "server/rpc/discovery/target_watch.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/shutdown.h"
#include "server/store/control/read_store_options.h"
#include "server/store/control/store_metrics.h"
#include "server/store/control/store_operator_api.h"
#include "server/store/prefix_store.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"
#include "transport/open_transport.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-decode answers prompts with the consumer's model over a KV cache that a prefill server hands over.
Where none can, it prefills by itself.

  aludel-decode --config configs/decode-chat.textproto
  aludel-decode --config my.textproto --check-config

A minimal configuration names a model; every setting is listed by --settings, and explained in
proto/aludel/v1/config.proto:

  listen: "127.0.0.1:7200"        # gRPC
  admin_listen: "127.0.0.1:7201"  # HTTP /metrics /health /ready
  engine { directory: "deploy/demo/chat" }
  prefill_targets: "127.0.0.1:7100"

SIGHUP looks at once whether its artifact was switched. SIGTERM or SIGINT stops it gently, a second one at once.)";

std::vector<v1::WireFormat> ToProto(const std::vector<FormatOffer>& offers) {
  std::vector<v1::WireFormat> formats;
  for (const FormatOffer& offer : offers) {
    v1::WireFormat& format = formats.emplace_back();
    format.set_name(offer.name);
    format.set_artifact_hash(offer.encoder_hash);
  }
  return formats;
}

PrefillPool::Options PoolOptions(const DecodeOptions& options, const DecodeHost& model,
                                 const AdapterPool& adapters, const std::string& receiver_address) {
  const bool watched = TargetWatch::Needed(options.prefill_targets);
  PrefillPool::Options pool{.targets = watched ? std::vector<std::string>() : options.prefill_targets,
                            .probe_interval = options.probe_interval,
                            .probe_max_interval = options.probe_max_interval,
                            .probe_timeout = options.probe_timeout,
                            .model = model.Identity(),
                            .receiver_address = receiver_address,
                            .site_limits = options.site_limits,
                            .grpc_tls = options.grpc_tls};
  pool.formats = ToProto(ServerFormats(model, adapters));
  return pool;
}

absl::Status CheckPlanner(const DecodeOptions& options, const CodecSet<DecoderFactory>& codecs,
                          const AdapterCodecs& adapters) {
  const std::string& wanted = options.planner.format;
  if (wanted.empty() || codecs.Find(wanted) != nullptr) return absl::OkStatus();
  for (const AdapterCodecs::Format& format : adapters.formats()) {
    if (format.name == wanted) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("planner.format: \"", wanted, "\" is not a format of this server"));
}

void WarnOfShortage(const DecodeHost& model, const CodecSet<DecoderFactory>& set, const FrameArena& arena,
                    const DecodeOptions& options) {
  for (const auto& codec : set.codecs) {
    const std::string shortage = ArenaShortage(model, codec->spec(), "receive_arena_bytes",
                                               arena.bytes_total(), options.handoff_window_bytes);
    if (!shortage.empty()) spdlog::warn("{}", shortage);
  }
}

// Of local prefill, in tokens a second; 0: not known yet.
double PrefillRate(const CostModel& costs) {
  constexpr int64_t kTokens = 1024;
  const double seconds = costs.LocalCompute(kTokens).value_or(0);
  return seconds > 0 ? kTokens / seconds : 0;
}

// Of those that this server can take, for its model or for adapters over it, those with an artifact.
std::vector<CodecSpec> CodedFormats(const CodecSet<DecoderFactory>& codecs,
                                    const std::vector<AdapterCodecs::Format>& of_adapters) {
  std::vector<CodecSpec> specs;
  for (const auto& codec : codecs.codecs) {
    if (!codec->spec().artifact_hash.empty()) specs.push_back(codec->spec());
  }
  for (const AdapterCodecs::Format& format : of_adapters) {
    if (codecs.Find(format.name) == nullptr) specs.push_back(format.Spec());
  }
  return specs;
}

// Received codes are found by their format and its artifact's hash, which names the model that made them, and by tokens,
// whose meaning is this model's vocabulary.
absl::StatusOr<PrefixStore::Options> ToStoreOptions(const StoreOptions& options, const DecodeHost& model,
                                                    const AdapterPool& adapters, const CostModel& costs) {
  ALUDEL_ASSIGN_OR_RETURN(PrefixStore::Options store, ReadStoreOptions(options));
  store.producer = absl::StrCat("received ", model.Identity().vocabulary_fingerprint());
  store.prefill_tokens_per_second = [&costs] { return PrefillRate(costs); };
  for (const CodecSpec& codec : CodedFormats(*model.codecs(), adapters.formats())) AddEncoder(codec, &store);
  return store;
}

// Everything in order of construction; destroyed in the reverse order.
absl::Status Serve(const DecodeOptions& options, StopSignal& stop) {
  Metrics metrics;
  CostModel costs;
  std::atomic<bool> draining = false;
  std::atomic<int64_t> sessions_open = 0;
  Trials trials;
  std::atomic<uint32_t> handoff_traces = 0;

  ALUDEL_ASSIGN_OR_RETURN(
      std::unique_ptr<DecodeHost> model,
      DecodeHost::Load(options.model, options.codec, ReportLoading(options.model.directory)));
  for (const PrefillSample& sample : model->prefill_samples()) {
    costs.ObserveLocal(sample.tokens, /*cached=*/0, {.prefill = sample.seconds, .ttft = sample.seconds});
  }
  const auto open_adapter_codecs = [&](const CodecSet<DecoderFactory>& set) {
    CodecOptions of_set = options.codec;
    if (!of_set.artifact.empty()) of_set.artifact = set.origin.directory;
    return model->MakeAdapterCodecs(of_set);
  };
  ALUDEL_ASSIGN_OR_RETURN(AdapterCodecs adapter_codecs, open_adapter_codecs(*model->codecs()));
  ALUDEL_RETURN_IF_ERROR(CheckPlanner(options, *model->codecs(), adapter_codecs));
  const std::unique_ptr<AdapterPool> adapters = model->MakeAdapterPool(
      options.model.directory, std::move(adapter_codecs), options.max_resident_adapters);
  for (const NamedAdapter& adapter : options.adapters) {
    ALUDEL_ASSIGN_OR_RETURN(const CacheOf cache, ReadCacheOf(adapter.cache_of));
    const absl::Status added = adapters->Add(adapter.name, adapter.directory, cache);
    if (!added.ok()) {
      return absl::Status(added.code(), absl::StrCat("adapter ", adapter.name, ": ", added.message()));
    }
  }
  OtlpExporter traces({.endpoint = options.tracing.otlp_endpoint,
                       .service = "aludel-decode",
                       .max_queue = static_cast<size_t>(options.tracing.max_queue)},
                      &metrics);
  KvReceiver receiver(RandomEpoch(), &metrics, &MonotonicNow);
  // A payload that takes longer than its whole handoff may is worth nothing any more.
  TransportOptions transport_options = options.transport;
  transport_options.receive_timeout = options.handoff_timeout;
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, OpenTransport(transport_options, &receiver));
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<FrameArena> arena,
                          FrameArena::Create(transport.get(), options.receive_arena_bytes));
  WarnOfShortage(*model, *model->codecs(), *arena, options);
  const std::unique_ptr<PinnedMemory> pinned = model->PinFrames(arena->memory(), *transport);
  const std::string receiver_address = transport->address();
  KeyLog cached_keys({.epoch = receiver.epoch(),
                      .key_tokens = std::max<int64_t>(model->engine().options().block_tokens, kKeyTokens)});
  CacheEventService cache_events(&cached_keys, [&options](const grpc::CallbackServerContext& call) {
    return CheckCaller(call, options.gateway_identities);
  });
  ALUDEL_ASSIGN_OR_RETURN(PrefixStore::Options store_options,
                          ToStoreOptions(options.store, *model, *adapters, costs));
  PrefixStore store(std::move(store_options));
  std::optional<KeptCodes> codes;
  if (store.enabled()) {
    codes.emplace(&store, options.store.memory_bytes, [&costs] { return PrefillRate(costs); });
  }
  ChosenArtifact chosen(*model->codecs(), &costs);
  Timer timer;  // its callbacks use what stands above
  ConstraintCache constraints(&model->tokenizer(), model->config().eos_ids, model->config().vocab);
  CacheEpoch cache_epoch;
  CachedPrompts cached_prompts(
      options.served_model_name, [&cache_epoch](absl::string_view salt) { return cache_epoch.OwnSalt(salt); },
      &cached_keys);
  WorkClock handlers;
  Watchdog watchdog({{"the engine", [&] { return model->EngineSilence(); }},
                     {"the transport's progress thread", [&] { return transport->ProgressSilence(); }},
                     {"a thread that compiles schemas", [&] { return constraints.Silence(); }},
                     {"a gRPC thread", [&] { return handlers.Longest(); }}},
                    options.watchdog_timeout, &timer);
  const DeviceWatch device_watch(&timer, StopSignal::Ask);

  const EngineMetrics engine_metrics(&metrics);
  const DataPlaneMetrics data_plane_metrics(&metrics);
  const DecodeMetrics session_metrics(&metrics);
  const StoreMetrics store_metrics(&metrics);
  NamedSeries models(&metrics, "model");
  absl::Mutex links;  // held from a look at their rates until they are exported, and while one is forgotten
  metrics.OnRender([&] {
    engine_metrics.Set(options.served_model_name, model->Stats());
    session_metrics.SetAdapters(options.served_model_name, adapters->stats());
    std::set<std::string> names = {options.served_model_name};
    for (const AdapterPool::About& adapter : adapters->known().adapters) names.insert(adapter.name);
    models.Set(names);
    data_plane_metrics.Set(transport->stats(), *arena, receiver.open_tickets());
    if (codes) store_metrics.Set(store.stats());
    absl::MutexLock lock(&links);
    for (const auto& [target, rate] : costs.LinkRates()) session_metrics.SetLinkRate(target, rate);
  });
  const auto health = [&watchdog] {
    const absl::Status lost = DeviceWatch::status();
    return lost.ok() ? watchdog.status() : lost;
  };
  const auto ready = [&] { return draining ? absl::UnavailableError("draining") : health(); };
  ALUDEL_ASSIGN_OR_RETURN(
      const StoreOperatorApi operator_api,
      StoreOperatorApi::Make(options.store.control_token_sha256, &store,
                             [&](absl::string_view name) { return model->sets().FindSpec(name); }));
  std::unique_ptr<AdminServer> admin;
  if (!options.admin_listen.empty()) {
    AdminServer::Checks checks{.health = health, .ready = ready};
    if (codes) operator_api.AddTo(&checks);
    ALUDEL_ASSIGN_OR_RETURN(admin, AdminServer::Start(options.admin_listen, &metrics, std::move(checks)));
  }

  PrefillPool pool(PoolOptions(options, *model, *adapters, receiver_address), &timer, &metrics);
  std::optional<TargetWatch> watch;
  if (TargetWatch::Needed(options.prefill_targets)) {
    watch.emplace(options.prefill_targets, [&](const std::vector<ServerName>& servers) {
      const std::vector<std::string> left = pool.SetTargets(servers);
      std::set<std::string> names;
      for (const ServerName& server : servers) names.insert(server.target);
      absl::MutexLock lock(&links);
      costs.SetTargets(std::move(names));
      for (const std::string& target : left) {
        session_metrics.ForgetLink(target);
        metrics.Forget("target", target);  // last: none of its series is there any more
      }
    });
  }
  std::optional<KnownStores> known_stores;
  const GaugeFamily known = metrics.Gauge("aludel_prefill_known_stores",
                                          "Prefill servers that tell what their prefix stores hold.");
  if (options.planner.store_events) {
    known_stores.emplace(&pool, &timer);
    metrics.OnRender([&] { known.Set({}, known_stores->known()); });
  }
  const GaugeFamily desired =
      metrics.Gauge("aludel_desired_replicas", "Servers of a role that the load calls for.");
  if (!options.prefill_targets.empty()) {
    metrics.OnRender([&] {
      desired.Set({{"role", "prefill"}, {"model", options.served_model_name}}, pool.Desired(MonotonicNow()));
    });
  }
  const GaugeFamily site_used = metrics.Gauge(
      "aludel_site_link_used_ratio", "Of what may be taken of the link from a site, what was taken lately.");
  metrics.OnRender([&] {
    for (const auto& [site, share] : pool.SiteShares(MonotonicNow())) site_used.Set({{"site", site}}, share);
  });
  // Whatever fails from here on: no metrics are asked for once the pool is gone.
  const absl::Cleanup close_admin = [&admin] { admin.reset(); };
  ShadowChecker shadow(options.shadow, options.served_model_name, &model->engine(), &timer, &metrics);
  LoadReporter load({.epoch = receiver.epoch(),
                     .model = model.get(),
                     .costs = &costs,
                     .prefill_pool = &pool,
                     .may_hand_over = options.planner.fidelity != Fidelity::kExact});
  const DecodeContext context = {.options = &options,
                                 .model = model.get(),
                                 .adapters = adapters.get(),
                                 .receiver = &receiver,
                                 .arena = arena.get(),
                                 .receiver_address = receiver_address,
                                 .prefill_pool = &pool,
                                 .codes = codes ? &*codes : nullptr,
                                 .known_stores = known_stores ? &*known_stores : nullptr,
                                 .constraints = &constraints,
                                 .cache_epoch = &cache_epoch,
                                 .cached_prompts = &cached_prompts,
                                 .costs = &costs,
                                 .chosen = &chosen,
                                 .timer = &timer,
                                 .metrics = &session_metrics,
                                 .load = &load,
                                 .traces = &traces,
                                 .shadow = &shadow,
                                 .sessions_open = &sessions_open,
                                 .trials = &trials,
                                 .handoff_traces = &handoff_traces,
                                 .handlers = &handlers,
                                 .health = health};
  DecodeService service(context);
  LoadService load_service(&load, &options.gateway_identities);
  const absl::Cleanup silence = [&cached_keys] { cached_keys.OnChange(nullptr); };
  cached_keys.OnChange([&timer, &cache_events] {
    timer.At(MonotonicNow() + CacheEventService::kGather, [&cache_events] { cache_events.Flush(); });
  });
  model->engine().WatchPrefixes(&cached_prompts);
  std::vector<grpc::Service*> services = {&service, &load_service, &cache_events};
  const std::unique_ptr<grpc::Service> store_control = codes ? operator_api.NewService(&handlers) : nullptr;
  if (store_control != nullptr) services.push_back(store_control.get());
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<grpc::Server> server,
                          StartGrpcServer(options.listen, options.grpc_tls, options.grpc_limits, services));
  spdlog::info("serving {} from {} on {}, admin on {}", options.served_model_name, options.model.directory,
               options.listen, admin == nullptr ? "nothing" : options.admin_listen);

  const auto follow = [&]() -> absl::StatusOr<ArtifactOrigin> {
    ALUDEL_ASSIGN_OR_RETURN(const auto next, model->OpenNext(options.codec));
    const auto now = model->codecs();
    if (next == now) return now->origin;
    ALUDEL_ASSIGN_OR_RETURN(AdapterCodecs of_adapters, open_adapter_codecs(*next));
    ALUDEL_RETURN_IF_ERROR(CheckPlanner(options, *next, of_adapters));
    WarnOfShortage(*model, *next, *arena, options);
    for (const CodecSpec& codec : CodedFormats(*next, of_adapters.formats())) store.AddCuts({CutOf(codec)});
    ALUDEL_RETURN_IF_ERROR(model->sets().Switch(next, MonotonicNow(), options.codec.keep_previous));
    // Adapters have the new version's at once; of the model's formats ChosenArtifact tells.
    std::set<std::string> changed = adapters->SetCodecs(std::move(of_adapters));
    for (const auto& set : model->sets().offered()) {
      for (const auto& codec : set->codecs) changed.erase(codec->spec().name);
    }
    costs.Forget(changed);
    pool.SetFormats(ToProto(ServerFormats(*model, *adapters)));
    return next->origin;
  };
  std::optional<ArtifactWatch> artifact;
  artifact.emplace(ArtifactWatch::Options{.location = options.codec.artifact,
                                          .interval = options.codec.reload_interval,
                                          .origin = model->codecs()->origin,
                                          .load = follow,
                                          .tend =
                                              [&] {
                                                KeepWhatPeersHave(context, pool.Snapshot());
                                                model->sets().Tend(MonotonicNow(),
                                                                   options.codec.keep_previous);
                                                adapters->Tend();
                                                pool.SetFormats(ToProto(ServerFormats(*model, *adapters)));
                                              },
                                          .held = [&] { return model->sets().held(); }},
                   &metrics);
  stop.OnHangup([&artifact] { artifact->Poke(); });

  const char* signal = stop.Wait();
  ExitWithin(options.drain_timeout + options.handoff_timeout + kStopSlack);
  spdlog::info("{}: stopping, {} requests open", signal, sessions_open.load());
  draining = true;
  cache_events.End();
  DrainAndShutdown(*server, options.drain_timeout, timer);
  artifact.reset();
  admin.reset();
  AwaitNone(
      "requests", [&] { return sessions_open.load(); }, absl::Seconds(5));
  // Frames of tickets that are closed now: the engine and the memory must outlive them.
  AwaitNone(
      "transfers", [&] { return receiver.unfinished_payloads(); },
      options.handoff_timeout + absl::Seconds(5));
  shadow.Stop();
  watchdog.Stop();
  model->StopEngine();
  return DeviceWatch::status();
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  return aludel::RunServer(argc, argv, "aludel-decode", aludel::kUsage,
                           aludel::v1::DecodeConfig::descriptor(), aludel::LoadDecodeOptions, aludel::Serve);
}
