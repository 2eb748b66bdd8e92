#include "server/observe/logging.h"

#include <algorithm>
#include <cstdint>
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

// Control characters beyond ASCII would reach a terminal.
constexpr bool kEnsureAscii = true;

// %* in a pattern: the message as a JSON string, so that no text of a peer can break a line apart.
class JsonMessageFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const nlohmann::json text = std::string(message.payload.data(), message.payload.size());
    const std::string quoted = text.dump(-1, ' ', kEnsureAscii, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessageFlag>();
  }
};

// The same in text.
class TextMessageFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = EscapeControls({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<TextMessageFlag>();
  }
};

bool IsControl(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point <= 0x9f) || code_point == 0x061c ||
         code_point == 0x200e || code_point == 0x200f || (code_point >= 0x2028 && code_point <= 0x202e) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

// The code point that `text` begins with, and its bytes; 0 bytes where it begins with none.
uint32_t FirstCodePoint(absl::string_view text, size_t* bytes) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const uint32_t lead = byte(0);
  *bytes = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (*bytes < 2) return lead;
  uint32_t code_point = lead & (0x7fu >> *bytes);
  for (size_t i = 1; i < *bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) *bytes = 0;
    code_point = code_point << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code_point < kLeast[*bytes]) *bytes = 0;
  return code_point;
}

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

std::string EscapeControls(absl::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    size_t bytes = 0;
    const uint32_t code_point = FirstCodePoint(text, &bytes);
    if (bytes == 0) {
      absl::StrAppend(&escaped, "\\x", absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
    } else if (!IsControl(code_point)) {
      absl::StrAppend(&escaped, text.substr(0, bytes));
    } else if (code_point == '\n' || code_point == '\r' || code_point == '\t') {
      absl::StrAppend(&escaped, code_point == '\n' ? "\\n" : code_point == '\r' ? "\\r" : "\\t");
    } else if (code_point < 0x80) {
      absl::StrAppend(&escaped, "\\x", absl::Hex(code_point, absl::kZeroPad2));
    } else {
      absl::StrAppend(&escaped, "\\u", absl::Hex(code_point, absl::kZeroPad4));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return escaped;
}

std::unique_ptr<spdlog::formatter> MakeLogFormatter(bool json) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  if (json) {
    formatter->add_flag<JsonMessageFlag>('*');
    formatter->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","process":"%n","message":%*})");
  } else {
    formatter->add_flag<TextMessageFlag>('*');
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %n: %*");
  }
  return formatter;
}

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
  events->info("{}", line.dump(-1, ' ', kEnsureAscii, nlohmann::json::error_handler_t::replace));
}

void StartLogging(const LogOptions& options, const char* process) {
  auto logger = std::make_shared<spdlog::logger>(process, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (options.json) {
    auto events =
        std::make_shared<spdlog::logger>(kEventLogger, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    events->set_pattern("%v");
    events->flush_on(spdlog::level::info);
    spdlog::register_logger(std::move(events));
  }
  logger->set_formatter(MakeLogFormatter(options.json));
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogFromGrpc);
}

}  // namespace aludel
