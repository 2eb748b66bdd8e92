#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "aludel/v1/config.pb.h"
#include "runtime/codec/open_codec.h"
#include "runtime/status_macros.h"
#include "server/config/prefill_options.h"
#include "server/config/run_server.h"
#include "server/handoff/caller_identity.h"
#include "server/handoff/frame_arena.h"
#include "server/handoff/handoff_metrics.h"
#include "server/handoff/random.h"
#include "server/host/arena_room.h"
#include "server/host/artifact_watch.h"
#include "server/host/device_watch.h"
#include "server/host/engine_metrics.h"
#include "server/host/loading.h"
#include "server/host/model_host.h"
#include "server/observe/admin.h"
#include "server/observe/metrics.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/watchdog.h"
#include "server/prefill/connection_cache.h"
#include "server/prefill/prefill_load.h"
#include "server/prefill/prefill_service.h"
#include "server/prefill/receiver_policy.h"
#include "server/prefill/store_events.h"
#include "server/process/exit_limit.h"
#include "server/process/stop_signal.h"
#include "server/process/timer.h"
#include "server/process/work_clock.h"
#include "server/rpc/cache_events/cache_event_service.h"
#include "server/rpc/cache_events/key_log.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/shutdown.h"
#include "server/store/control/read_store_options.h"
#include "server/store/control/store_metrics.h"
#include "server/store/control/store_operator_api.h"
#include "server/store/flights.h"
#include "server/store/prefix_store.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"
#include "transport/open_transport.h"
#include "transport/transport.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-prefill runs prompts through the producer's model and ships codes of its KV cache to decode servers.

  aludel-prefill --config configs/prefill.textproto
  aludel-prefill --config my.textproto --check-config

A minimal configuration names a model; every setting is listed by --settings, and explained in
proto/aludel/v1/config.proto:

  listen: "127.0.0.1:7100"        # gRPC
  admin_listen: "127.0.0.1:7101"  # HTTP /metrics /health /ready
  engine { directory: "deploy/demo/base" }

SIGHUP looks at once whether its artifact was switched. SIGTERM or SIGINT stops it gently, a second one at once.)";

// Nothing arrives at a prefill server over the data plane.
class RefuseAll : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t) override { return {}; }
  void OnPayload(MessageId, absl::Status) override {}
};

// All that the numbers in this server's frames depend on, but for the machine's instructions.
std::string ProducerName(const PrefillHost& model, const ModelOptions& options) {
  const v1::ModelIdentity identity = model.Identity();
  return absl::StrCat(identity.weights_hash(), " ", identity.rope(),
                      " compute=", Name(options.transformer.compute), " kv=", Name(options.engine.kv_dtype),
                      " weights=", model.WeightsText());
}

void WarnOfShortage(const PrefillHost& model, const CodecSet<EncoderFactory>& set, const FrameArena& arena,
                    const PrefillOptions& options) {
  for (const auto& codec : set.codecs) {
    const std::string shortage = ArenaShortage(model, codec->spec(), "send_arena_bytes", arena.bytes_total(),
                                               options.handoff_window_bytes);
    if (!shortage.empty()) spdlog::warn("{}", shortage);
  }
}

absl::StatusOr<PrefixStore::Options> ToStoreOptions(const PrefillOptions& options, const PrefillHost& model,
                                                    const PrefillLoad& load, StoreWatcher* watcher) {
  ALUDEL_ASSIGN_OR_RETURN(PrefixStore::Options store, ReadStoreOptions(options.store));
  store.producer = ProducerName(model, options.model);
  store.prefill_tokens_per_second = [&load] { return load.tokens_per_second(); };
  store.watcher = watcher;
  for (const auto& codec : model.codecs()->codecs) AddEncoder(codec->spec(), &store);
  return store;
}

// Everything in order of construction; destroyed in the reverse order.
absl::Status Serve(const PrefillOptions& options, StopSignal& stop) {
  Metrics metrics;
  std::atomic<bool> draining = false;
  std::atomic<int64_t> runs_open = 0;

  ALUDEL_ASSIGN_OR_RETURN(
      std::unique_ptr<PrefillHost> model,
      PrefillHost::Load(options.model, options.codec, ReportLoading(options.model.directory)));
  OtlpExporter traces({.endpoint = options.tracing.otlp_endpoint,
                       .service = "aludel-prefill",
                       .max_queue = static_cast<size_t>(options.tracing.max_queue)},
                      &metrics);
  RefuseAll refuse_all;
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                          OpenTransport(options.transport, &refuse_all));
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<FrameArena> arena,
                          FrameArena::Create(transport.get(), options.send_arena_bytes));
  WarnOfShortage(*model, *model->codecs(), *arena, options);
  const std::unique_ptr<PinnedMemory> pinned = model->PinFrames(arena->memory(), *transport);
  ALUDEL_ASSIGN_OR_RETURN(const AddressKind address_kind, AddressKindOf(options.transport.kind));
  ConnectionCache connections(transport.get(), address_kind, options.max_channels, options.connect_timeout);
  const ReceiverPolicy receivers(address_kind, options.receiver_addresses);
  const uint64_t epoch = RandomEpoch();
  KeyLog stored_keys({.epoch = epoch, .producer = ProducerName(*model, options.model)});
  CacheEventService cache_events(&stored_keys, [&options](const grpc::CallbackServerContext& call) {
    return CheckCaller(call, options.decode_identities);
  });
  StoreEvents store_events(&stored_keys);
  PrefillLoad load;
  for (const PrefillSample& sample : model->prefill_samples()) load.Computed(sample.tokens, sample.seconds);
  ALUDEL_ASSIGN_OR_RETURN(PrefixStore::Options store_options,
                          ToStoreOptions(options, *model, load, &store_events));
  PrefixStore store(std::move(store_options));
  Flights flights(options.model.engine.max_num_batched_tokens);
  CacheEpoch cache_epoch;
  RunRegistry runs;
  Timer timer;  // its callbacks use what stands above
  WorkClock handlers;
  Watchdog watchdog({{"the engine", [&] { return model->EngineSilence(); }},
                     {"the transport's progress thread", [&] { return transport->ProgressSilence(); }},
                     {"a thread that connects", [&] { return connections.Silence(); }},
                     {"a gRPC thread", [&] { return handlers.Longest(); }}},
                    options.watchdog_timeout, &timer);
  const DeviceWatch device_watch(&timer, StopSignal::Ask);

  const EngineMetrics engine_metrics(&metrics);
  const DataPlaneMetrics data_plane_metrics(&metrics);
  const PrefillMetrics run_metrics(&metrics);
  const StoreMetrics store_metrics(&metrics);
  metrics.OnRender([&] {
    engine_metrics.Set(options.model_name, model->Stats());
    data_plane_metrics.Set(transport->stats(), *arena, runs_open.load());
    store_metrics.Set(store.stats());
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
    operator_api.AddTo(&checks);
    ALUDEL_ASSIGN_OR_RETURN(admin, AdminServer::Start(options.admin_listen, &metrics, std::move(checks)));
  }

  const PrefillContext context = {.options = &options,
                                  .model = model.get(),
                                  .arena = arena.get(),
                                  .connections = &connections,
                                  .receivers = &receivers,
                                  .store = &store,
                                  .flights = &flights,
                                  .cache_epoch = &cache_epoch,
                                  .timer = &timer,
                                  .metrics = &run_metrics,
                                  .traces = &traces,
                                  .runs_open = &runs_open,
                                  .runs = &runs,
                                  .load = &load,
                                  .handlers = &handlers,
                                  .health = health};
  PrefillService service(context, epoch);
  // The store, which outlives the timer, may change until its end.
  const absl::Cleanup silence = [&stored_keys] { stored_keys.OnChange(nullptr); };
  stored_keys.OnChange([&timer, &cache_events] {
    timer.At(MonotonicNow() + CacheEventService::kGather, [&cache_events] { cache_events.Flush(); });
  });
  std::vector<grpc::Service*> services = {&service, &cache_events};
  const std::unique_ptr<grpc::Service> store_control = operator_api.NewService(&handlers);
  if (store_control != nullptr) services.push_back(store_control.get());
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<grpc::Server> server,
                          StartGrpcServer(options.listen, options.grpc_tls, options.grpc_limits, services));
  spdlog::info("serving the cache of {} on {}, admin on {}", options.model.directory, options.listen,
               admin == nullptr ? "nothing" : options.admin_listen);

  std::optional<ArtifactWatch> artifact;
  artifact.emplace(
      ArtifactWatch::Options{.location = options.codec.artifact,
                             .interval = options.codec.reload_interval,
                             .origin = model->codecs()->origin,
                             .load = [&]() -> absl::StatusOr<ArtifactOrigin> {
                               ALUDEL_ASSIGN_OR_RETURN(const auto next, model->OpenNext(options.codec));
                               WarnOfShortage(*model, *next, *arena, options);
                               for (const auto& codec : next->codecs) store.AddCuts({CutOf(codec->spec())});
                               ALUDEL_RETURN_IF_ERROR(
                                   model->sets().Switch(next, MonotonicNow(), options.codec.keep_previous));
                               return next->origin;
                             },
                             .tend = [&] { model->sets().Tend(MonotonicNow(), options.codec.keep_previous); },
                             .held = [&] { return model->sets().held(); }},
      &metrics);
  stop.OnHangup([&artifact] { artifact->Poke(); });

  const char* signal = stop.Wait();
  ExitWithin(options.drain_timeout + kStopSlack);
  spdlog::info("{}: stopping, {} runs open", signal, runs_open.load());
  draining = true;
  cache_events.End();
  DrainAndShutdown(*server, options.drain_timeout, timer);
  artifact.reset();
  admin.reset();
  watchdog.Stop();
  model->StopEngine();
  AwaitNone(
      "runs", [&] { return runs_open.load(); }, absl::Seconds(5));
  return DeviceWatch::status();
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  return aludel::RunServer(argc, argv, "aludel-prefill", aludel::kUsage,
                           aludel::v1::PrefillConfig::descriptor(), aludel::LoadPrefillOptions,
                           aludel::Serve);
}
