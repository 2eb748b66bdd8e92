#include "server/config/gateway_options.h"

#include "absl/strings/str_cat.h"
#include "aludel/v1/config.pb.h"
#include "runtime/status_macros.h"
#include "server/config/common_sections.h"
#include "server/config/config_file.h"

namespace aludel {
namespace {

HttpTlsOptions ReadHttpTls(const ConfigSection& section, const v1::HttpTlsConfig& tls) {
  section.Check(
      tls.certificate_file().empty() == tls.key_file().empty(), "key_file",
      absl::StrCat("\"", tls.key_file(), "\" beside certificate_file \"", tls.certificate_file(), "\""),
      "both files or neither");
  return {.certificate_file = tls.certificate_file(), .key_file = tls.key_file()};
}

HttpAccessOptions ReadHttpAccess(const v1::HttpAccessConfig& access) {
  return {.keys_file = access.keys_file(),
          .requests_per_minute = access.requests_per_minute(),
          .tokens_per_minute = access.tokens_per_minute(),
          .max_concurrent = static_cast<int>(access.max_concurrent()),
          .max_n = static_cast<int>(access.max_n()),
          .may_set_priority = access.may_set_priority()};
}

}  // namespace

absl::StatusOr<GatewayOptions> LoadGatewayOptions(const std::string& path) {
  v1::GatewayConfig config;
  ConfigFile file(path);
  ALUDEL_RETURN_IF_ERROR(file.Parse(&config));
  const ConfigSection root = file.Root();
  GatewayOptions options{
      .listen = config.listen(),
      .log = ReadLog(config.log()),
      .prefill_targets = {config.prefill_targets().begin(), config.prefill_targets().end()},
      .max_body_bytes = config.max_body_bytes(),
      .max_total_body_bytes = static_cast<int64_t>(config.max_total_body_bytes()),
      .max_header_bytes = config.max_header_bytes(),
      .max_connections = static_cast<int>(config.max_connections()),
      .max_requests = static_cast<int>(config.max_requests()),
      .max_answer_bytes = config.max_answer_bytes(),
      .max_stored_responses = config.max_stored_responses(),
      .max_stored_response_bytes = config.max_stored_response_bytes(),
      .stored_response_ttl = absl::Milliseconds(config.stored_response_ttl_ms()),
      .max_waiting = static_cast<int>(config.max_waiting()),
      .max_waiting_tokens = static_cast<int64_t>(config.max_waiting_tokens()),
      .read_timeout = absl::Milliseconds(config.read_timeout_ms()),
      .idle_timeout = absl::Milliseconds(config.idle_timeout_ms()),
      .request_timeout = absl::Milliseconds(config.request_timeout_ms()),
      .probe_timeout = absl::Milliseconds(config.probe_timeout_ms()),
      .probe_interval = absl::Milliseconds(config.probe_interval_ms()),
      .max_stream_backlog = static_cast<int>(config.max_stream_backlog()),
      .drain_timeout = absl::Milliseconds(config.drain_timeout_ms()),
      .lame_duck = absl::Milliseconds(config.lame_duck_ms()),
      .tls = ReadHttpTls(root.Nested("tls"), config.tls()),
      .access = ReadHttpAccess(config.access()),
      .cors_allowed_origins = {config.cors_allowed_origins().begin(), config.cors_allowed_origins().end()},
      .admin_listen = config.admin_listen(),
      .reload_interval = absl::Milliseconds(config.reload_interval_ms()),
      .io_threads = static_cast<int>(config.io_threads()),
      .handler_threads = static_cast<int>(config.handler_threads()),
      .routing = {.policy = config.routing().policy(),
                  .objective_ttft = absl::Milliseconds(config.routing().objective_ttft_ms()),
                  .cache_events = config.routing().cache_events()},
      .capture = {.file = config.capture().file(),
                  .max_bytes = static_cast<int64_t>(config.capture().max_bytes()),
                  .share = config.capture().share()},
      .tracing = ReadTracing(root.Nested("tracing"), config.tracing()),
      .grpc_tls = ReadGrpcTls(root.Nested("grpc_tls"), config.grpc_tls()),
      .watchdog_timeout = absl::Milliseconds(config.watchdog_timeout_ms())};
  for (int i = 0; i < config.models_size(); ++i) {
    const ConfigSection section = root.Nested("models", i);
    const v1::ServedModel& model = config.models(i);
    for (const ServedModelOptions& other : options.models) {
      section.Check(other.name != model.name(), "name", absl::StrCat("\"", model.name(), "\" twice"),
                    "each name once");
    }
    options.models.push_back(
        {.name = model.name(),
         .directory = model.directory(),
         .decode_targets = {model.decode_targets().begin(), model.decode_targets().end()},
         .generation_defaults = model.generation_defaults(),
         .special_tokens_as_text = model.special_tokens_in_content() == "text",
         .max_ttft =
             model.max_ttft_ms() == 0 ? absl::InfiniteDuration() : absl::Milliseconds(model.max_ttft_ms())});
  }
  ALUDEL_RETURN_IF_ERROR(file.status());
  ALUDEL_RETURN_IF_ERROR(CheckGrpcTls(options.grpc_tls));
  return options;
}

}  // namespace aludel
