#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "aludel/v1/config.pb.h"
#include "runtime/status_macros.h"
#include "server/config/gateway_options.h"
#include "server/config/run_server.h"
#include "server/gateway/access/access.h"
#include "server/gateway/access/api_keys.h"
#include "server/gateway/access/traffic_capture.h"
#include "server/gateway/front.h"
#include "server/gateway/gateway.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_server.h"
#include "server/http/tls_context.h"
#include "server/observe/admin.h"
#include "server/observe/metrics.h"
#include "server/observe/named_series.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/request_metrics.h"
#include "server/observe/watchdog.h"
#include "server/process/exit_limit.h"
#include "server/process/reloader.h"
#include "server/process/stop_signal.h"
#include "server/process/timer.h"
#include "server/rpc/discovery/target_watch.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-gateway serves the OpenAI API over HTTP in front of Aludel's decode servers.

  aludel-gateway --config configs/gateway.textproto
  aludel-gateway --config my.textproto --check-config

A minimal configuration names a model; every setting is listed by --settings, and explained in
proto/aludel/v1/config.proto:

  listen: "127.0.0.1:8080"  # HTTP /v1 /metrics /health /ready
  models { name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:7200" }

SIGHUP reads certificate and key files again. SIGTERM or SIGINT stops it gently, a second one at once.)";

// What a streamed token weighs on its way to a client, JSON and framing included, generously.
constexpr size_t kStreamEventBytes = 512;

// Descriptors that are not clients': event queues, log, files that are read again; and one per decode server.
constexpr int64_t kOtherDescriptors = 32;

// Every connection is a descriptor; the usual soft limit of 1,024 would be the first thing to break.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) spdlog::warn("cannot raise the limit of open files");
}

// As many of `wanted` connections as there are descriptors for: beyond, a client is told so with a 503, where
// accept() without a descriptor would leave it waiting, and gRPC and the log without one.
int ConnectionsThatFit(int wanted, const std::vector<ServedModelOptions>& models) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  int64_t others = kOtherDescriptors;
  for (const ServedModelOptions& model : models) others += static_cast<int64_t>(model.decode_targets.size());
  const int64_t fit = std::max<int64_t>(1, static_cast<int64_t>(limit.rlim_cur) - others);
  if (fit >= wanted) return wanted;
  spdlog::warn("the limit of open files, {}, leaves room for {} client connections, not max_connections, {}",
               limit.rlim_cur, fit, wanted);
  return static_cast<int>(fit);
}

absl::StatusOr<HttpServerOptions> HttpOptions(const GatewayOptions& options) {
  ALUDEL_ASSIGN_OR_RETURN(HttpServerOptions http, ListenOn(options.listen));
  http.io_threads = options.io_threads;
  http.handler_threads = options.handler_threads;
  http.max_connections = ConnectionsThatFit(options.max_connections, options.models);
  http.limits.max_header_bytes = static_cast<size_t>(options.max_header_bytes);
  http.limits.max_body_bytes = static_cast<size_t>(options.max_body_bytes);
  http.max_total_body_bytes = static_cast<size_t>(options.max_total_body_bytes);
  http.header_timeout = options.read_timeout;
  http.body_timeout = options.read_timeout;
  http.idle_timeout = options.idle_timeout;
  http.max_queued_bytes = static_cast<size_t>(options.max_stream_backlog) * kStreamEventBytes;
  return http;
}

std::vector<std::string> ModelNames(const GatewayOptions& options) {
  std::vector<std::string> names;
  for (const ServedModelOptions& model : options.models) names.push_back(model.name);
  return names;
}

std::vector<Router::Model> RouterModels(const GatewayOptions& options, const ServedModels& models) {
  std::vector<Router::Model> result;
  for (const ServedModelOptions& model : options.models) {
    result.push_back(
        {.expectation = {.model = model.name,
                         .tokenizer_fingerprint = models.Find(model.name)->tokenizer->fingerprint()},
         .decode_targets =
             TargetWatch::Needed(model.decode_targets) ? std::vector<std::string>() : model.decode_targets,
         .list = absl::StrJoin(model.decode_targets, ", "),
         .max_ttft = model.max_ttft});
  }
  return result;
}

Fleet::Options FleetOptions(const RoutingOptions& options) {
  return {.policy = ParseRoutingPolicy(options.policy).value_or(RoutingPolicy::kPrefix),
          .objective_seconds = absl::ToDoubleSeconds(options.objective_ttft),
          .cache_events = options.cache_events};
}

// Has the router hear of servers that come and go, where their list is a DNS name or a file.
std::vector<std::unique_ptr<TargetWatch>> WatchTargets(const GatewayOptions& options, Router* router) {
  std::vector<std::unique_ptr<TargetWatch>> watches;
  for (const ServedModelOptions& model : options.models) {
    if (!TargetWatch::Needed(model.decode_targets)) continue;
    watches.push_back(std::make_unique<TargetWatch>(
        model.decode_targets, [router, name = model.name](const std::vector<ServerName>& servers) {
          router->SetDecodeTargets(name, servers);
        }));
  }
  if (TargetWatch::Needed(options.prefill_targets)) {
    watches.push_back(std::make_unique<TargetWatch>(
        options.prefill_targets,
        [router](const std::vector<ServerName>& servers) { router->SetPrefillTargets(servers); }));
  }
  return watches;
}

KeyLimits DefaultLimits(const HttpAccessOptions& options) {
  return {.requests_per_minute = static_cast<double>(options.requests_per_minute),
          .tokens_per_minute = static_cast<double>(options.tokens_per_minute),
          .max_concurrent = options.max_concurrent,
          .max_n = options.max_n,
          .may_set_priority = options.may_set_priority};
}

absl::Status LoadKeys(const HttpAccessOptions& options, Access* access) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<ApiKey> keys, LoadApiKeys(options.keys_file, DefaultLimits(options)));
  spdlog::info("{} API keys from {}", keys.size(), options.keys_file);
  access->SetKeys(std::move(keys));
  return absl::OkStatus();
}

void LogSamplingDefaults(const ServedModels& models) {
  for (const auto& model : models.all()) {
    if (const std::string text = model->defaults.Describe(); !text.empty()) {
      spdlog::info("model {}: {} unless a request says otherwise (generation_config.json)", model->name,
                   text);
    }
    for (const std::string& field : model->defaults.not_served) {
      spdlog::warn("model {}: generation_config.json asks for {}, which is not served", model->name, field);
    }
  }
}

// Everything in order of construction; destroyed in the reverse order.
absl::Status Serve(const GatewayOptions& options, StopSignal& stop) {
  RaiseDescriptorLimit();
  ALUDEL_ASSIGN_OR_RETURN(HttpServerOptions http_options, HttpOptions(options));
  std::vector<Reloader::Watched> watched;
  std::unique_ptr<TlsContext> tls;
  if (!options.tls.certificate_file.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(
        tls, TlsContext::Load({.certificate = options.tls.certificate_file, .key = options.tls.key_file}));
    http_options.tls = tls.get();
    watched.push_back({{options.tls.certificate_file, options.tls.key_file}, [&] { return tls->Reload(); }});
  }
  Access access(DefaultLimits(options.access));
  if (!options.access.keys_file.empty()) {
    ALUDEL_RETURN_IF_ERROR(LoadKeys(options.access, &access));
    watched.push_back({{options.access.keys_file}, [&] { return LoadKeys(options.access, &access); }});
  }
  Metrics metrics;
  std::atomic<const Watchdog*> watching = nullptr;  // null while models load
  const auto health = [&watching] {
    const Watchdog* const watchdog = watching.load();
    return watchdog == nullptr ? absl::OkStatus() : watchdog->status();
  };
  Front front(ModelNames(options), options.admin_listen.empty() ? &metrics : nullptr);
  ALUDEL_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server, front.Listen(http_options));
  std::unique_ptr<AdminServer> admin;
  if (!options.admin_listen.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(
        admin, AdminServer::Start(
                   options.admin_listen, &metrics,
                   {.health = health,
                    .ready = [&front] { return front.CheckReady(); },
                    .more = [&front](const HttpRequest& request) { return front.AnswerAdmin(request); }}));
  }
  ALUDEL_ASSIGN_OR_RETURN(ServedModels models,
                          ServedModels::Load(options.models, [&front](const std::string& model, bool loaded) {
                            front.Loads(model, loaded);
                          }));
  LogSamplingDefaults(models);
  const RequestMetrics requests(&metrics);
  for (const auto& model : models.all()) requests.Expect(model->name);
  OtlpExporter traces({.endpoint = options.tracing.otlp_endpoint,
                       .service = "aludel-gateway",
                       .max_queue = static_cast<size_t>(options.tracing.max_queue)},
                      &metrics);
  Router router(RouterModels(options, models),
                {.probe_interval = options.probe_interval, .probe_timeout = options.probe_timeout}, &metrics,
                MakeChannelCredentials(options.grpc_tls),
                {.max_waiting = options.max_waiting, .max_waiting_tokens = options.max_waiting_tokens},
                FleetOptions(options.routing));
  const std::vector<std::unique_ptr<TargetWatch>> watches = WatchTargets(options, &router);
  models.FindAdaptersWith([&router](const std::string& name) { return router.targets().BaseOf(name); });
  TrafficCapture capture(
      {.file = options.capture.file, .max_bytes = options.capture.max_bytes, .share = options.capture.share},
      &metrics);
  ALUDEL_RETURN_IF_ERROR(capture.Check());
  Gateway gateway({.completions = {.max_requests = options.max_requests,
                                   .request_timeout = options.request_timeout,
                                   .max_answer_bytes = options.max_answer_bytes,
                                   .prefill_targets = options.prefill_targets,
                                   .capture = &capture},
                   .cors_allowed_origins = options.cors_allowed_origins,
                   .serves_admin = options.admin_listen.empty(),
                   .trace_share = options.tracing.sample_share,
                   .responses = {.max_responses = options.max_stored_responses,
                                 .max_bytes = options.max_stored_response_bytes,
                                 .max_age = options.stored_response_ttl},
                   .health = health},
                  &access, &models, &router, &metrics, &traces);
  const GaugeFamily connections = metrics.Gauge("aludel_http_connections", "Open client connections.");
  const GaugeFamily imbalance =
      metrics.Gauge("aludel_routing_imbalance",
                    "The longest predicted wait of a model's ready decode servers over their mean.");
  const GaugeFamily desired =
      metrics.Gauge("aludel_desired_replicas", "Servers of a role that the load calls for.");
  NamedSeries names(&metrics, "model");
  metrics.OnRender([&] {
    connections.Set({}, static_cast<double>(server->open_connections()));
    // Also those of servers that are down: they may come back with their adapters.
    std::set<std::string> served;
    for (const auto& target : router.targets().all()) {
      for (std::string& adapter : target->adapters()) served.insert(std::move(adapter));
    }
    for (const auto& model : models.all()) served.insert(model->name);
    names.Set(served);
    for (const auto& model : models.all()) {
      requests.SetRequests(model->name, router.Outstanding(model->name), router.Waiting(model->name));
      imbalance.Set({{"model", model->name}}, router.Imbalance(model->name));
      desired.Set({{"role", "decode"}, {"model", model->name}}, router.Desired(model->name));
    }
  });
  front.Open(&gateway);
  // Whatever fails from here on: its requests end before it does.
  const absl::Cleanup close = [&] {
    admin.reset();
    server->Shutdown(absl::ZeroDuration());
  };
  Timer timer;
  std::vector<Watchdog::Check> checks = gateway.Checks();
  checks.push_back({"an I/O thread", [&server] { return server->Silence(); }});
  Watchdog watchdog(std::move(checks), options.watchdog_timeout, &timer);
  watching = &watchdog;
  Reloader reloader(std::move(watched), options.reload_interval);
  stop.OnHangup([&] { reloader.Poke(); });
  spdlog::info("listening on {}://{}:{}", tls == nullptr ? "http" : "https", http_options.address,
               server->port());
  const char* signal = stop.Wait();
  ExitWithin(options.lame_duck + options.drain_timeout + kStopSlack);
  gateway.Drain();
  if (options.lame_duck > absl::ZeroDuration()) {
    // Not ready, and serving on: a load balancer sees the first before it meets a closed port.
    spdlog::info("{}: not ready, and serving for {:.1f} s more", signal,
                 absl::ToDoubleSeconds(options.lame_duck));
    absl::SleepFor(options.lame_duck);
  }
  spdlog::info("{}: running requests have {:.1f} s to end", signal,
               absl::ToDoubleSeconds(options.drain_timeout));
  server->Shutdown(options.drain_timeout);
  admin.reset();
  watching = nullptr;
  watchdog.Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  return aludel::RunServer(argc, argv, "aludel-gateway", aludel::kUsage,
                           aludel::v1::GatewayConfig::descriptor(), aludel::LoadGatewayOptions,
                           aludel::Serve);
}
