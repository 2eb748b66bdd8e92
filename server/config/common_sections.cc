#include "server/config/common_sections.h"

#include "absl/strings/str_cat.h"
#include "server/http/http_url.h"

namespace aludel {

LogOptions ReadLog(const ConfigSection& section, const v1::LogConfig& log) {
  section.CheckOneOf("level", {"trace", "debug", "info", "warn", "error"});
  section.CheckOneOf("format", {"text", "json"});
  return LogOptions{.level = log.level(), .json = log.format() == "json"};
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

GrpcLimits ReadGrpcLimits(const ConfigSection& section, const v1::GrpcLimitsConfig& limits) {
  section.CheckRange("max_calls", 1, 1 << 20);
  section.CheckRange("memory_bytes", 16 << 20, kMaxBytes);
  return {.max_calls = static_cast<int>(limits.max_calls()), .memory_bytes = limits.memory_bytes()};
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
          .handoff_trace_directory = tracing.handoff_trace_directory()};
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

}  // namespace aludel
