#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace aludel {

// One message of a parsed configuration file together with where its fields stand in that file, so that a
// check can name file, line, field, found and expected. Checks are called in any order; the first that fails
// is kept in the root's status. A section must not outlive the ConfigFile that it came from.
class ConfigSection {
 public:
  // The nested message `field` (an empty one with defaults where the file has none), for repeated fields the
  // one at `index`.
  ConfigSection Nested(absl::string_view field, int index = -1) const;

  // For what the field's (setting) cannot say: fails unless `ok`. `index` is for repeated fields.
  void Check(bool ok, absl::string_view field, absl::string_view found, absl::string_view want,
             int index = -1) const;

 private:
  friend class ConfigFile;
  using Tree = google::protobuf::TextFormat::ParseInfoTree;
  ConfigSection(const std::string* file, const google::protobuf::Message* message, Tree* tree,
                std::string prefix, absl::Status* first_error)
      : file_(file), message_(message), tree_(tree), prefix_(std::move(prefix)), first_error_(first_error) {}
  const google::protobuf::FieldDescriptor* Field(absl::string_view name) const;
  // Each field of this message and of those in it against its (setting).
  void CheckFields() const;

  const std::string* file_;
  const google::protobuf::Message* message_;
  Tree* tree_;  // null where the file does not have this section
  std::string prefix_;
  absl::Status* first_error_;
};

// Reads a file in protobuf text format and remembers lines.
class ConfigFile {
 public:
  explicit ConfigFile(std::string path) : path_(std::move(path)) {}
  // NotFound for a file that cannot be read; InvalidArgument with line and column for text that is not a
  // `message`. Values that their (setting) does not allow are in status(). `message` must outlive every section.
  absl::Status Parse(google::protobuf::Message* message);
  ConfigSection Root();
  // The first check that failed, or Ok.
  const absl::Status& status() const { return first_error_; }

 private:
  std::string path_;
  const google::protobuf::Message* message_ = nullptr;
  google::protobuf::TextFormat::ParseInfoTree tree_;
  absl::Status first_error_;
};

}  // namespace aludel
