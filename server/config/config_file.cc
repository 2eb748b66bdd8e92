#include "server/config/config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "kernels/check.h"
#include "runtime/files/regular_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// For a parse error about a field that a later version has renamed: "; its name is NEW". Else empty.
std::string RenamedField(const std::string& message) {
  static constexpr std::pair<absl::string_view, absl::string_view> kRenamed[] = {
      {"chunk_tokens", "max_num_batched_tokens"},
      {"max_sequences", "max_num_seqs"},
      {"handover_timeout_ms", "handoff_timeout_ms"},
      {"handover_window_bytes", "handoff_window_bytes"},
      {"handover_trace_directory", "handoff_trace_directory"},
      {"native_tail_tokens", "recomputed_tail_tokens"},
      {"emulated_bytes_per_second", "testing { bytes_per_second }"},
      {"emulated_delay_ms", "testing { delay_ms }"},
      {"emulated_drop_rate", "testing { drop_rate }"},
      {"emulated_corrupt_rate", "testing { corrupt_rate }"},
      {"emulated_duplicate_rate", "testing { duplicate_rate }"},
      {"emulated_lost_share", "testing { drop_rate }"},
      {"emulated_spoiled_share", "testing { corrupt_rate }"},
      {"emulated_doubled_share", "testing { duplicate_rate }"},
      {"emulated_seed", "testing { seed }"},
  };
  for (const auto& [old_name, name] : kRenamed) {
    if (absl::StrContains(message, absl::StrCat("no field named \"", old_name, "\""))) {
      return absl::StrCat(" Its name is ", name, ".");
    }
  }
  return "";
}

// Keeps the first parse error; protobuf counts lines and columns from 0.
class FirstParseError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstParseError(const std::string& path) : path_(path) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (!text.empty()) return;
    text = absl::StrCat(line < 0 ? path_ : absl::StrCat(path_, ":", line + 1, ":", column + 1), ": ", message,
                        RenamedField(message));
  }
  std::string text;

 private:
  const std::string& path_;
};

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

}  // namespace

absl::Status ConfigFile::Parse(Message* message) {
  message_ = message;
  ALUDEL_RETURN_IF_ERROR(CheckRegularFile(path_));
  std::ifstream in(path_);
  if (!in.is_open()) {
    return absl::NotFoundError(absl::StrCat(path_, ": cannot read configuration: ", std::strerror(errno)));
  }
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  FirstParseError error(path_);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&tree_);
  if (!parser.ParseFromString(text, message)) return absl::InvalidArgumentError(error.text);
  return absl::OkStatus();
}

ConfigSection ConfigFile::Root() { return ConfigSection(&path_, message_, &tree_, "", &first_error_); }

const FieldDescriptor* ConfigSection::Field(absl::string_view name) const {
  const FieldDescriptor* field = message_->GetDescriptor()->FindFieldByName(std::string(name));
  ALUDEL_CHECK(field != nullptr);
  return field;
}

ConfigSection ConfigSection::Nested(absl::string_view name, int index) const {
  const FieldDescriptor* field = Field(name);
  const auto* reflection = message_->GetReflection();
  const Message& child = index < 0 ? reflection->GetMessage(*message_, field)
                                   : reflection->GetRepeatedMessage(*message_, field, index);
  Tree* tree = tree_ == nullptr ? nullptr : tree_->GetTreeForNested(field, index);
  std::string prefix =
      index < 0 ? absl::StrCat(prefix_, name, ".") : absl::StrCat(prefix_, name, "[", index, "].");
  return ConfigSection(file_, &child, tree, std::move(prefix), first_error_);
}

std::string ConfigSection::String(absl::string_view name, int index) const {
  const auto* reflection = message_->GetReflection();
  return index < 0 ? reflection->GetString(*message_, Field(name))
                   : reflection->GetRepeatedString(*message_, Field(name), index);
}

void ConfigSection::Check(bool ok, absl::string_view name, absl::string_view found, absl::string_view want,
                          int index) const {
  if (ok || !first_error_->ok()) return;
  // A repeated field without elements has no place in the file.
  const bool has_line = tree_ != nullptr && (index >= 0 || !Field(name)->is_repeated());
  const int line = has_line ? tree_->GetLocation(Field(name), index).line : -1;
  *first_error_ = absl::InvalidArgumentError(
      absl::StrCat(*file_, line < 0 ? "" : absl::StrCat(":", line + 1), ": ", prefix_, name,
                   index < 0 ? "" : absl::StrCat("[", index, "]"), ": found ", found, ", want ", want));
}

void ConfigSection::CheckHostPort(absl::string_view name) const {
  const std::string value = String(name, -1);
  Check(IsHostPort(value), name, absl::StrCat("\"", value, "\""), "host:port with a port from 0 to 65535");
}

void ConfigSection::CheckTarget(absl::string_view name, int index) const {
  // Names with a scheme (dns:///, unix:) are gRPC's to resolve.
  const std::string value = String(name, index);
  const bool scheme =
      value.find("://") != std::string::npos || value.rfind("unix:", 0) == 0 || value.rfind("dns:", 0) == 0;
  Check(scheme || IsHostPort(value), name, absl::StrCat("\"", value, "\""),
        "host:port or a gRPC target such as dns:///name:port", index);
}

void ConfigSection::CheckNotEmpty(absl::string_view name, int index) const {
  Check(!String(name, index).empty(), name, "nothing", "a value", index);
}

void ConfigSection::CheckOneOf(absl::string_view name, const std::vector<std::string>& allowed) const {
  const std::string value = String(name, -1);
  Check(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), name,
        absl::StrCat("\"", value, "\""), absl::StrCat("one of ", absl::StrJoin(allowed, ", ")));
}

void ConfigSection::CheckRange(absl::string_view name, uint64_t low, uint64_t high) const {
  const FieldDescriptor* field = Field(name);
  const auto* reflection = message_->GetReflection();
  const uint64_t value = field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32
                             ? reflection->GetUInt32(*message_, field)
                             : reflection->GetUInt64(*message_, field);
  Check(value >= low && value <= high, name, absl::StrCat(value), absl::StrCat(low, " to ", high));
}

void ConfigSection::CheckAtLeastOne(absl::string_view name) const {
  Check(message_->GetReflection()->FieldSize(*message_, Field(name)) > 0, name, "none", "at least one");
}

void ConfigSection::CheckUnique(absl::string_view name) const {
  std::set<std::string> seen;
  const int size = message_->GetReflection()->FieldSize(*message_, Field(name));
  for (int i = 0; i < size; ++i) {
    const std::string value = String(name, i);
    Check(seen.insert(value).second, name, absl::StrCat("\"", value, "\" twice"), "each value once", i);
  }
}

}  // namespace aludel
