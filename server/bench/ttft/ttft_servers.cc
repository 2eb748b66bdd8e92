#include "server/bench/ttft/ttft_servers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "aludel/v1/config.pb.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_path.h"
#include "runtime/status_macros.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr char kModel[] = "ttft";  // that the client asks for
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kGetTimeout = absl::Seconds(10);
constexpr size_t kShownBytes = 300;  // of an answer that is an error

// Keeps the first mistake; protobuf counts lines and columns from 0.
class FirstMistake : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (text.empty()) text = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  std::string text;
};

absl::Status MergeSettings(const std::string& settings, absl::string_view flag,
                           google::protobuf::Message* config) {
  FirstMistake mistake;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&mistake);
  if (parser.MergeFromString(settings, config)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", mistake.text, "; want settings of ",
                                                 config->GetTypeName(), " (proto/aludel/v1/config.proto)"));
}

std::string AtPort(int port) { return absl::StrCat("127.0.0.1:", port); }

// For gateway, decode and prefill server alike: a wait that outlasts the measurement is an error of its own.
uint32_t Milliseconds(absl::Duration duration) {
  return static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1000, 86'400'000));
}

void SetEngine(const TtftServerOptions& options, const std::string& model, v1::EngineConfig* engine) {
  const ModelPath path = ModelPath::Parse(model);
  engine->set_directory(path.base);
  if (!path.adapter.empty()) engine->set_adapter(path.adapter);
  engine->set_threads(static_cast<uint32_t>(options.threads));
  engine->set_max_num_seqs(2);
  engine->set_max_context(static_cast<uint64_t>(options.longest) + 1);  // and the token of the answer
}

void SetCodec(const TtftServerOptions& options, v1::CodecConfig* codec) {
  codec->set_artifact(options.artifact);
  for (const std::string& format : options.formats) {
    if (format != kPlanner) codec->add_formats(format);
  }
}

std::string Print(const google::protobuf::Message& config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return text;
}

// Whether a decode server's metrics say that it has a prefill server.
bool SaysReady(absl::string_view metrics) {
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    if (absl::StartsWith(line, "aludel_prefill_target_state{") &&
        absl::StrContains(line, "state=\"ready\"") && absl::EndsWith(line, " 1")) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<TtftSample> ReadAnswer(const std::string& body, const std::string& format) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto about = json.is_object() ? json.find("aludel") : json.end();
  if (!json.is_object() || about == json.end() || !about->is_object()) {
    return absl::InternalError(absl::StrCat("an answer without \"aludel\": ", body.substr(0, kShownBytes)));
  }
  const std::string plan = about->value("plan", "");
  const std::string want = format == kLocalPrefill ? "local" : "remote";
  if (plan != want && (format != kPlanner || plan != "local")) {
    const auto reason = about->find("fallback_reason");
    return absl::FailedPreconditionError(absl::StrCat(
        format, ": the plan was \"", plan, "\", want \"", want, "\"",
        reason != about->end() && reason->is_string() ? absl::StrCat(": ", reason->get<std::string>()) : ""));
  }
  TtftSample sample{.payload_bytes = about->value("payload_bytes", int64_t{0}),
                    .handed_off_tokens = about->value("handed_over_tokens", int64_t{0})};
  if (format == kPlanner) sample.choice = plan == "local" ? plan : about->value("format", "");
  if (const auto stages = about->find("stages"); stages != about->end() && stages->is_object()) {
    for (const char* name : {"queue", "prefill", "encode", "transfer", "reconstruct", "recompute",
                             "first_decode", "held", "gateway"}) {
      sample.stages.emplace_back(name, stages->value(name, 0.0));
    }
  }
  return sample;
}

}  // namespace

absl::StatusOr<TtftConfigs> MakeTtftConfigs(const TtftServerOptions& options, const TtftPorts& ports) {
  const uint32_t limit = Milliseconds(options.timeout);
  // A probe on cores that all compute may take long, and a server that seems gone would be left out.
  const uint32_t probe_limit = std::min<uint32_t>(limit, 30'000);

  v1::PrefillConfig prefill;
  prefill.set_listen(AtPort(ports.prefill));
  prefill.set_admin_listen(AtPort(ports.prefill_admin));
  SetEngine(options, options.producer, prefill.mutable_engine());
  SetCodec(options, prefill.mutable_codec());
  if (options.link > 0)
    prefill.mutable_transport()->mutable_testing()->set_bytes_per_second(options.link / 8);
  prefill.set_run_timeout_ms(limit);
  prefill.set_watchdog_timeout_ms(limit);
  // Frames of a prompt that comes again must still be there: twice the longest one's, uncoded.
  v1::StoreConfig* store = prefill.mutable_store();
  store->set_memory_bytes(std::max(store->memory_bytes(),
                                   2 * static_cast<uint64_t>(options.longest * options.raw_bytes_per_token)));
  ALUDEL_RETURN_IF_ERROR(MergeSettings(options.prefill_settings, "--prefill", &prefill));

  v1::DecodeConfig decode;
  decode.set_listen(AtPort(ports.decode));
  decode.set_admin_listen(AtPort(ports.decode_admin));
  decode.set_served_model_name(kModel);
  SetEngine(options, options.consumer, decode.mutable_engine());
  decode.mutable_engine()->set_prefix_cache(false);
  SetCodec(options, decode.mutable_codec());
  decode.add_prefill_targets(AtPort(ports.prefill));
  decode.mutable_planner()->set_min_remote_tokens(1);
  decode.mutable_planner()->set_by_prediction(true);  // for requests that leave it the choice
  decode.set_handoff_timeout_ms(limit);
  decode.set_request_timeout_ms(limit);
  decode.set_watchdog_timeout_ms(limit);
  decode.set_probe_interval_ms(200);
  decode.set_probe_timeout_ms(probe_limit);
  ALUDEL_RETURN_IF_ERROR(MergeSettings(options.decode_settings, "--decode", &decode));

  v1::GatewayConfig gateway;
  gateway.set_listen(AtPort(ports.gateway));
  v1::ServedModel* model = gateway.add_models();
  model->set_name(kModel);
  model->set_directory(ModelPath::Parse(options.consumer).base);
  model->add_decode_targets(AtPort(ports.decode));
  gateway.add_prefill_targets(AtPort(ports.prefill));
  gateway.set_request_timeout_ms(limit);
  gateway.set_probe_interval_ms(200);
  gateway.set_probe_timeout_ms(probe_limit);
  return TtftConfigs{.prefill = Print(prefill), .decode = Print(decode), .gateway = Print(gateway)};
}

TtftServers::TtftServers(TtftServerOptions options, TtftPorts ports, std::function<bool()> stop)
    : options_(std::move(options)), ports_(ports), stop_(std::move(stop)) {}

TtftServers::~TtftServers() {
  for (const auto& child : children_) child->Terminate();  // all at once, then one by one
}

absl::StatusOr<std::unique_ptr<TtftServers>> TtftServers::Start(const TtftServerOptions& options,
                                                                std::function<bool()> stop) {
  TtftPorts ports;
  for (int* port :
       {&ports.prefill, &ports.prefill_admin, &ports.decode, &ports.decode_admin, &ports.gateway}) {
    *port = FreePort();
  }
  ALUDEL_ASSIGN_OR_RETURN(const TtftConfigs configs, MakeTtftConfigs(options, ports));
  std::unique_ptr<TtftServers> servers(new TtftServers(options, ports, std::move(stop)));
  for (const auto& [name, config] :
       {std::pair{"prefill", configs.prefill}, {"decode", configs.decode}, {"gateway", configs.gateway}}) {
    ALUDEL_ASSIGN_OR_RETURN(auto child, ChildServer::Start(absl::StrCat(options.bin, "/aludel-", name),
                                                           options.folder, name, config));
    servers->children_.push_back(std::move(child));
  }
  ALUDEL_ASSIGN_OR_RETURN(const HttpUrl url,
                          ParseHttpUrl(absl::StrCat("http://", AtPort(ports.gateway), "/v1/completions")));
  servers->completions_ = std::make_unique<HttpClient>(HttpClientOptions{.url = url});
  ALUDEL_RETURN_IF_ERROR(servers->AwaitReady());
  return servers;
}

absl::Status TtftServers::Check() {
  if (stop_()) return absl::CancelledError("stopped");
  for (const auto& child : children_) ALUDEL_RETURN_IF_ERROR(child->Check());
  return absl::OkStatus();
}

absl::Status TtftServers::AwaitUntil(const char* what, const std::function<bool()>& condition) {
  const absl::Time until = MonotonicNow() + options_.timeout;
  while (!condition()) {
    ALUDEL_RETURN_IF_ERROR(Check());
    if (MonotonicNow() > until) {
      return absl::UnavailableError(absl::StrCat(what, " within ", absl::FormatDuration(options_.timeout),
                                                 " (--timeout); logs are in ", options_.folder));
    }
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

absl::Status TtftServers::AwaitReady() {
  return AwaitUntil("the servers were not ready", [this] {
    return SaysReady(Get(ports_.decode_admin, "/metrics")) &&
           !Get(ports_.gateway, absl::StrCat("/ready?model=", kModel)).empty();
  });
}

std::string TtftServers::Get(int port, const std::string& path) {
  const absl::StatusOr<HttpUrl> url = ParseHttpUrl(absl::StrCat("http://", AtPort(port), path));
  if (!url.ok()) return "";
  HttpClient client({.url = *url});
  std::string body;
  int status = 0;
  bool ended = false;
  client.Get(
      kGetTimeout,
      [&](absl::string_view bytes) {
        absl::StrAppend(&body, bytes);
        return absl::OkStatus();
      },
      [&](int code, const absl::Status& error) {
        ended = true;
        status = error.ok() ? code : 0;
      });
  while (!ended) client.RunFor(kGetTimeout);
  return status == 200 ? body : "";
}

double TtftServers::PrefillMetric(const std::string& sample) {
  const std::string metrics = Get(ports_.prefill_admin, "/metrics");
  const size_t at = metrics.find(absl::StrCat("\n", sample, " "));
  if (at == std::string::npos) return -1;
  const size_t begin = at + sample.size() + 2;
  double value = -1;
  return absl::SimpleAtod(metrics.substr(begin, metrics.find('\n', begin) - begin), &value) ? value : -1;
}

absl::Status TtftServers::AwaitIdle() {
  // A run leaves its frames in the cache before its ticket is closed.
  return AwaitUntil("the prefill server was not idle",
                    [this] { return PrefillMetric("aludel_tickets_open") == 0; });
}

absl::StatusOr<int64_t> TtftServers::StoreHits() {
  const double hits = PrefillMetric("aludel_store_lookups_total{result=\"hit\"}");
  ALUDEL_RETURN_IF_ERROR(Check());
  if (hits < 0) return absl::InternalError("aludel-prefill does not say how often its store was hit");
  return static_cast<int64_t>(hits);
}

absl::StatusOr<TtftSample> TtftServers::FirstToken(const std::vector<int32_t>& prompt,
                                                   const std::string& format) {
  nlohmann::json about = {{"format", format}};
  if (format == kLocalPrefill) about = {{"fidelity", "exact"}};
  if (format == kPlanner) about = {{"fidelity", "fast"}};
  const nlohmann::json body = {{"model", kModel},  {"prompt", prompt},   {"max_tokens", 1},
                               {"temperature", 0}, {"ignore_eos", true}, {"aludel", std::move(about)}};
  const std::string text = body.dump();
  std::string answer;
  int status = 0;
  absl::Status error;
  bool ended = false;
  const absl::Time begin = MonotonicNow();
  completions_->Post(
      text, options_.timeout,
      [&](absl::string_view bytes) {
        absl::StrAppend(&answer, bytes);
        return absl::OkStatus();
      },
      [&](int code, const absl::Status& what) {
        ended = true;
        status = code;
        error = what;
      });
  while (!ended) {
    completions_->RunFor(absl::Milliseconds(200));
    if (ended) break;
    if (const absl::Status gone = Check(); !gone.ok()) {
      completions_->EndAll(gone);
      return gone;
    }
  }
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  ALUDEL_RETURN_IF_ERROR(Check());
  if (!error.ok()) return absl::FailedPreconditionError(absl::StrCat(format, ": ", error.message()));
  if (status != 200) {
    return absl::FailedPreconditionError(
        absl::StrCat(format, ": HTTP ", status, ": ", answer.substr(0, kShownBytes)));
  }
  ALUDEL_ASSIGN_OR_RETURN(TtftSample sample, ReadAnswer(answer, format));
  sample.seconds = seconds;
  double servers = 0;
  for (const auto& [name, stage_seconds] : sample.stages) servers += stage_seconds;
  sample.stages.emplace_back("client", std::max(0.0, seconds - servers));
  return sample;
}

}  // namespace aludel
