#include "server/logging.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/support/log.h"
#include "nlohmann/json.hpp"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// %* in a pattern: the message as a JSON string, so that no text of a peer can break a line apart.
class JsonMessageFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const nlohmann::json text = std::string(message.payload.data(), message.payload.size());
    const std::string quoted = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessageFlag>();
  }
};

void LogFromGrpc(gpr_log_func_args* args) {
  const auto level = args->severity == GPR_LOG_SEVERITY_ERROR  ? spdlog::level::warn
                     : args->severity == GPR_LOG_SEVERITY_INFO ? spdlog::level::debug
                                                               : spdlog::level::trace;
  spdlog::log(level, "grpc: {}", args->message);
}

// Lines that are whole JSON objects already.
constexpr char kEventLogger[] = "aludel-events";

// A value as it stands behind "key=": quoted only where it must be.
std::string PlainValue(const nlohmann::ordered_json& value) {
  const std::string dumped = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (!value.is_string() || dumped.find_first_of(" =\\") != std::string::npos || dumped.size() == 2) {
    return dumped;
  }
  return dumped.substr(1, dumped.size() - 2);
}

}  // namespace

void LogEvent(const char* name, const nlohmann::ordered_json& fields) {
  if (!spdlog::should_log(spdlog::level::info)) return;
  const std::shared_ptr<spdlog::logger> events = spdlog::get(kEventLogger);
  if (events == nullptr) {
    std::string line = name;
    for (const auto& [key, value] : fields.items()) absl::StrAppend(&line, " ", key, "=", PlainValue(value));
    return spdlog::info("{}", line);
  }
  nlohmann::ordered_json line = {
      {"time", absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone())},
      {"level", "info"},
      {"process", spdlog::default_logger_raw()->name()},
      {"message", name}};
  line.update(fields);
  events->info("{}", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void StartLogging(const LogOptions& options, const char* process) {
  auto logger = std::make_shared<spdlog::logger>(process, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  if (options.json) {
    formatter->add_flag<JsonMessageFlag>('*');
    auto events =
        std::make_shared<spdlog::logger>(kEventLogger, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    events->set_pattern("%v");
    events->flush_on(spdlog::level::info);
    spdlog::register_logger(std::move(events));
    formatter->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","process":"%n","message":%*})");
  } else {
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %n: %v");
  }
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogFromGrpc);
}

}  // namespace aludel
