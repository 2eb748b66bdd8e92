#include "server/config/config_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "kernels/check.h"
#include "runtime/files/regular_file.h"
#include "runtime/status_macros.h"
#include "server/config/setting_rules.h"

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
      {"policy",
       "by_prediction (\"fastest\" is true; \"first\" is false, which balances load over all prefill "
       "servers)"},
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
  Root().CheckFields();
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

void ConfigSection::CheckFields() const {
  const google::protobuf::Descriptor* descriptor = message_->GetDescriptor();
  const auto* reflection = message_->GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const int size = field->is_repeated() ? reflection->FieldSize(*message_, field) : 0;
    Check(size > 0 || !field->is_repeated() || !IsRequired(field), field->name(), "none", "at least one");
    // A single value is at index -1.
    for (int index = field->is_repeated() ? 0 : -1; index < size; ++index) {
      if (field->message_type() != nullptr) {
        Nested(field->name(), index).CheckFields();
      } else if (const auto fault = FindFault(*message_, field, index); fault.has_value()) {
        Check(false, field->name(), fault->found, fault->want, index);
      }
    }
  }
}

}  // namespace aludel
