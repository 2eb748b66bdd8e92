#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// JSON types as a set. A number is an integer or has a fraction.
using TypeSet = uint8_t;
inline constexpr TypeSet kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32,
                         kObject = 64, kAnyType = 127;

// The types of a "type" keyword, or those that other keywords of the schema speak of, or all. Errors name
// what was found.
absl::StatusOr<TypeSet> TypesOf(const nlohmann::ordered_json& schema);
TypeSet TypeOfValue(const nlohmann::ordered_json& value);

// The schema at "#/a/b", null where there is none.
const nlohmann::ordered_json* ResolvePointer(const nlohmann::ordered_json& root, absl::string_view reference);

// The values a schema lists in const or enum, less those that its type refuses; nothing where it lists none.
std::optional<std::vector<nlohmann::ordered_json>> ListedValues(const nlohmann::ordered_json& schema);

// True where no value can match both schemas, as far as types, listed values and properties that both require
// tell. False where it cannot be told.
bool AreDisjoint(const nlohmann::ordered_json& root, const nlohmann::ordered_json& one,
                 const nlohmann::ordered_json& other);

}  // namespace aludel
