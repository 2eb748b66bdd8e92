#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// What a parser reads of one JSON object, written down as a JSON schema while it reads: /openapi.json says what the parsers
// do because it is made by them.
class FieldSchema {
 public:
  // A field may also be null. The first that is said of it stands.
  void Add(absl::string_view name, nlohmann::ordered_json schema);
  void Require(absl::string_view name) { required_.push_back(std::string(name)); }
  // A field that is refused is not named, whatever is said of it later.
  void LeaveOut(absl::string_view name) { left_out_.push_back(std::string(name)); }
  void Close() { closed_ = true; }  // no other fields
  nlohmann::ordered_json ToJson() const;

 private:
  nlohmann::ordered_json properties_ = nlohmann::ordered_json::object();
  std::vector<std::string> required_;
  std::vector<std::string> left_out_;
  bool closed_ = false;
};

// Reads typed fields of one JSON object; the first fault is kept and names the parameter, what was found and
// what was expected. Null is absence. The object must outlive the reader.
class JsonFields {
 public:
  // `prefix` goes in front of names in messages, e.g. "aludel.".
  // `schema`: is told of what is read; may be null.
  explicit JsonFields(const nlohmann::ordered_json& object, absl::string_view prefix = "",
                      FieldSchema* schema = nullptr)
      : object_(object), prefix_(prefix), schema_(schema) {}

  // Null pointer for an absent or null field.
  const nlohmann::ordered_json* Find(absl::string_view name) const;
  // Each is empty where the field is absent or at fault.
  std::optional<double> Number(absl::string_view name, double min, double max);
  std::optional<int64_t> Integer(absl::string_view name, int64_t min, int64_t max);
  std::optional<bool> Bool(absl::string_view name);
  std::optional<std::string> String(absl::string_view name);
  const nlohmann::ordered_json* Object(absl::string_view name);
  // For a field that is read by Find: what it may be, made where it is wanted.
  template <typename MakeSchema>
  void Describe(absl::string_view name, const MakeSchema& make) {
    if (schema_ != nullptr) schema_->Add(name, make());
  }
  void Require(absl::string_view name) {
    if (schema_ != nullptr) schema_->Require(name);
  }
  // Has an object's own fields read, where there is one; their fault is this one's.
  void Nested(absl::string_view name,
              const std::function<void(JsonFields& fields, FieldSchema* schema)>& read);

  // For fields with a meaning that we do not serve: anything but absence and the value that asks for nothing.
  void Refuse(absl::string_view name, const nlohmann::ordered_json& harmless, absl::string_view instead);

  void Fail(ApiError error);
  void Fail(absl::string_view name, absl::string_view message);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const nlohmann::ordered_json* FindObject(absl::string_view name);
  void WrongType(absl::string_view name, const nlohmann::ordered_json& found, absl::string_view expected);

  const nlohmann::ordered_json& object_;
  const std::string prefix_;
  FieldSchema* const schema_;
  std::optional<ApiError> error_;
};

// The fields that `read` reads, as a JSON schema. It is given the reader of an empty object, whose faults do not matter.
nlohmann::ordered_json DescribeFields(const std::function<void(JsonFields& fields)>& read);

}  // namespace aludel
