#include "server/config/common_sections.h"

#include "absl/strings/str_cat.h"
#include "server/http/http_url.h"

namespace aludel {

LogOptions ReadLog(const v1::LogConfig& log) {
  return LogOptions{.level = log.level(), .json = log.format() == "json"};
}

GrpcTlsOptions ReadGrpcTls(const ConfigSection& section, const v1::GrpcTlsConfig& tls) {
  const int given = static_cast<int>(!tls.certificate_file().empty()) +
                    static_cast<int>(!tls.key_file().empty()) + static_cast<int>(!tls.ca_file().empty());
  section.Check(given == 0 || given == 3, "certificate_file", absl::StrCat(given, " of three files"),
                "certificate_file, key_file and ca_file, or none of them");
  return {.certificate_file = tls.certificate_file(),
          .key_file = tls.key_file(),
          .ca_file = tls.ca_file(),
          .reload_interval = absl::Seconds(tls.reload_interval_s())};
}

GrpcLimits ReadGrpcLimits(const v1::GrpcLimitsConfig& limits) {
  return {.max_calls = static_cast<int>(limits.max_calls()), .memory_bytes = limits.memory_bytes()};
}

TracingOptions ReadTracing(const ConfigSection& section, const v1::TracingConfig& tracing) {
  const std::string& endpoint = tracing.otlp_endpoint();
  const absl::Status parsed = ParseHttpUrl(endpoint).status();
  section.Check(endpoint.empty() || parsed.ok(), "otlp_endpoint", parsed.message(),
                "http://host:port/v1/traces or https://...");
  return {.otlp_endpoint = endpoint,
          .sample_share = endpoint.empty() ? 0 : tracing.sample_share(),
          .max_queue = static_cast<int>(tracing.max_queue()),
          .handoff_trace_directory = tracing.handoff_trace_directory()};
}

}  // namespace aludel
