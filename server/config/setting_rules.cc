#include "server/config/setting_rules.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aludel/v1/setting.pb.h"
#include "kernels/check.h"
#include "server/rpc/discovery/dns_lookup.h"

namespace aludel {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const v1::Setting& SettingOf(const FieldDescriptor* field) {
  return field->options().GetExtension(v1::setting);
}

bool IsNumber(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ||
         field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 ||
         field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
}

// A number of a singular field. Bounds are far below 2^53, so that a double holds what matters of an integer.
double NumberOf(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) return reflection->GetUInt32(message, field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
    return static_cast<double>(reflection->GetUInt64(message, field));
  }
  return reflection->GetDouble(message, field);
}

// Digits as a reader would type them.
std::string Spell(const FieldDescriptor* field, double number) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) return absl::StrCat(number);
  // The largest uint64 is no double.
  if (number >= 0x1p64) return absl::StrCat(std::numeric_limits<uint64_t>::max());
  return absl::StrCat(static_cast<uint64_t>(number));
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

// For a value that a later version has renamed: " Its name is NEW." Else empty.
std::string RenamedValue(const FieldDescriptor* field, absl::string_view value) {
  static constexpr struct {
    absl::string_view field, old_value, value;
  } kRenamed[] = {{"aludel.v1.PlannerConfig.fidelity", "coded", "fast"}};
  for (const auto& renamed : kRenamed) {
    if (renamed.field == field->full_name() && renamed.old_value == value) {
      return absl::StrCat(". Its name is ", renamed.value, ".");
    }
  }
  return "";
}

// "host:port" with a port from 0 to 65535; the host may be a name, an IPv4 address or a [bracketed] IPv6 one.
bool IsHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  const absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (host.find(':') != absl::string_view::npos && (host.front() != '[' || host.back() != ']')) return false;
  int number = 0;
  return std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         absl::SimpleAtoi(port, &number) && number <= 65535;
}

// Names with a scheme (dns:///, file:, unix:) are resolved later.
bool IsTarget(absl::string_view text) {
  if (text.rfind("dns:", 0) == 0) return ParseDnsName(text).ok();
  return text.find("://") != absl::string_view::npos || text.rfind("unix:", 0) == 0 ||
         (text.rfind("file:", 0) == 0 && text.size() > 5) || IsHostPort(text);
}

std::optional<SettingFault> FaultOfNumber(const Message& message, const FieldDescriptor* field) {
  const v1::Setting& setting = SettingOf(field);
  const double value = NumberOf(message, field);
  if (setting.has_at_least()) {
    const FieldDescriptor* other = message.GetDescriptor()->FindFieldByName(setting.at_least());
    ALUDEL_CHECK(other != nullptr && IsNumber(other));
    const double least = NumberOf(message, other);
    if (value < least) {
      return SettingFault{Spell(field, value),
                          absl::StrCat("at least ", setting.at_least(), ", ", Spell(other, least))};
    }
  }
  // Written so that NaN is a fault.
  const bool in_range =
      (!setting.has_min() || value >= setting.min()) && (!setting.has_max() || value <= setting.max());
  const bool has_form =
      !setting.power_of_two() || (in_range && std::has_single_bit(static_cast<uint64_t>(value)));
  if (in_range && has_form) return std::nullopt;
  return SettingFault{Spell(field, value), AllowedValues(field)};
}

std::optional<SettingFault> FaultOfText(const FieldDescriptor* field, const std::string& value,
                                        bool may_be_empty) {
  const v1::Setting& setting = SettingOf(field);
  if (value.empty() && may_be_empty) return std::nullopt;
  if (setting.one_of_size() > 0) {
    const auto& allowed = setting.one_of();
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return std::nullopt;
    return SettingFault{Quoted(value), absl::StrCat(AllowedValues(field), RenamedValue(field, value))};
  }
  if (setting.form() == v1::Setting::HOST_PORT && !IsHostPort(value))
    return SettingFault{Quoted(value), AllowedValues(field)};
  if (setting.form() == v1::Setting::TARGET && !IsTarget(value))
    return SettingFault{Quoted(value), AllowedValues(field)};
  if (value.empty()) return SettingFault{"nothing", "a value"};
  return std::nullopt;
}

std::string DefaultOf(const FieldDescriptor* field) {
  if (field->is_repeated()) return "none";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return Quoted(field->default_value_string());
    case FieldDescriptor::CPPTYPE_BOOL:
      return field->default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(field->default_value_uint32());
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(field->default_value_uint64());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(field->default_value_double());
    default:
      return "";
  }
}

void AppendSettings(const Descriptor* config, const std::string& prefix, std::string* table) {
  for (int i = 0; i < config->field_count(); ++i) {
    const FieldDescriptor* field = config->field(i);
    const std::string name = absl::StrCat(prefix, field->name(), field->is_repeated() ? "[]" : "");
    if (field->message_type() != nullptr) {
      AppendSettings(field->message_type(), name + ".", table);
      continue;
    }
    const bool missing = IsRequired(field) && (field->is_repeated() || !field->has_default_value());
    std::string line = absl::StrFormat("%-36s %-18s %s", name, missing ? "(required)" : DefaultOf(field),
                                       AllowedValues(field));
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(table, line, "\n");
  }
}

}  // namespace

std::optional<SettingFault> FindFault(const Message& message, const FieldDescriptor* field, int index) {
  if (IsNumber(field)) return FaultOfNumber(message, field);
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return std::nullopt;
  const auto* reflection = message.GetReflection();
  if (index < 0) return FaultOfText(field, reflection->GetString(message, field), !IsRequired(field));
  const std::string value = reflection->GetRepeatedString(message, field, index);
  for (int i = 0; SettingOf(field).distinct() && i < index; ++i) {
    if (reflection->GetRepeatedString(message, field, i) == value) {
      return SettingFault{absl::StrCat(Quoted(value), " twice"), "each value once"};
    }
  }
  return FaultOfText(field, value, false);
}

bool IsRequired(const FieldDescriptor* field) { return SettingOf(field).required(); }

std::string AllowedValues(const FieldDescriptor* field) {
  const v1::Setting& setting = SettingOf(field);
  if (setting.one_of_size() > 0) return absl::StrCat("one of ", absl::StrJoin(setting.one_of(), ", "));
  if (setting.form() == v1::Setting::HOST_PORT) return "host:port with a port from 0 to 65535";
  if (setting.form() == v1::Setting::TARGET)
    return "host:port, dns:///name:port, file:PATH or another gRPC target";
  if (!setting.has_min()) return "";
  return absl::StrCat(setting.power_of_two() ? "a power of two, " : "", Spell(field, setting.min()),
                      setting.has_max() ? absl::StrCat(" to ", Spell(field, setting.max())) : " or more",
                      setting.has_unit() ? " " : "", setting.unit());
}

std::string SettingsTable(const Descriptor* config) {
  std::string table = absl::StrFormat("%-36s %-18s %s\n", "setting", "default", "allowed");
  AppendSettings(config, "", &table);
  return table;
}

}  // namespace aludel
