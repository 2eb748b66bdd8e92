#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// Reads typed fields of one JSON object; the first fault is kept and names the parameter, what was found and
// what was expected. Null is absence. The object must outlive the reader.
class JsonFields {
 public:
  // `prefix` goes in front of names in messages, e.g. "aludel.".
  explicit JsonFields(const nlohmann::ordered_json& object, absl::string_view prefix = "")
      : object_(object), prefix_(prefix) {}

  // Null pointer for an absent or null field.
  const nlohmann::ordered_json* Find(absl::string_view name) const;
  // Each is empty where the field is absent or at fault.
  std::optional<double> Number(absl::string_view name, double min, double max);
  std::optional<int64_t> Integer(absl::string_view name, int64_t min, int64_t max);
  std::optional<bool> Bool(absl::string_view name);
  std::optional<std::string> String(absl::string_view name);
  const nlohmann::ordered_json* Object(absl::string_view name);

  // For fields with a meaning that we do not serve: anything but absence and the value that asks for nothing.
  void Refuse(absl::string_view name, const nlohmann::ordered_json& harmless, absl::string_view instead);

  void Fail(ApiError error);
  void Fail(absl::string_view name, absl::string_view message);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void WrongType(absl::string_view name, const nlohmann::ordered_json& found, absl::string_view expected);

  const nlohmann::ordered_json& object_;
  const std::string prefix_;
  std::optional<ApiError> error_;
};

}  // namespace aludel
