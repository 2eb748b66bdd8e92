#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// Reads foreign JSON: every size is bounded, no exception leaves, and an error names the file, the place,
// what was found and what was expected.

// The whole of a regular file; ResourceExhausted above `max_bytes`, NotFound where it does not exist,
// InvalidArgument for what is no regular file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Parses `text`, whose values may nest `max_depth` deep. A key given twice in one object is an error: readers
// disagree on which of the two counts.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view origin, int max_depth);

// "string", "number", ... followed by the value itself where it is short: for error messages.
std::string DescribeJson(const nlohmann::json& value);

// An error that names the first member of `object` that is not in `known`, or that `object` is none.
absl::Status CheckMembers(const nlohmann::json& object, std::initializer_list<absl::string_view> known,
                          absl::string_view origin);

// Member `name` of `object` where it is present and not null, else nullptr.
const nlohmann::json* FindMember(const nlohmann::json& object, const char* name);

// Typed members. `origin` and `name` appear in the error; an absent or null member takes `fallback`.
absl::StatusOr<int64_t> IntMember(const nlohmann::json& object, const char* name, int64_t fallback,
                                  int64_t min, int64_t max, absl::string_view origin);
absl::StatusOr<double> NumberMember(const nlohmann::json& object, const char* name, double fallback,
                                    double min, double max, absl::string_view origin);
absl::StatusOr<bool> BoolMember(const nlohmann::json& object, const char* name, bool fallback,
                                absl::string_view origin);
absl::StatusOr<std::string> StringMember(const nlohmann::json& object, const char* name,
                                         const std::string& fallback, absl::string_view origin);

}  // namespace aludel
