#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// JSON types as a set. A number is an integer or has a fraction.
using TypeSet = uint8_t;
inline constexpr TypeSet kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32,
                         kObject = 64, kAnyType = 127;

// The types of a "type" keyword, or those that other keywords of the schema speak of, or all. Errors name
// what was found.
absl::StatusOr<TypeSet> TypesOf(const nlohmann::ordered_json& schema);
TypeSet TypeOfValue(const nlohmann::ordered_json& value);

// The values a schema lists in const or enum, less those that its type refuses; nothing where it lists none.
// They point into the schema.
using ValueList = std::vector<const nlohmann::ordered_json*>;
std::optional<ValueList> ListedValues(const nlohmann::ordered_json& schema);

// A text that equal values share, and no others: members by name, integers without a fraction.
std::string CanonicalText(const nlohmann::ordered_json& value);

// Up to 128 bytes of what a client wrote, for messages.
std::string Shown(absl::string_view text);

// What can be told of a schema's places without compiling them. Each place and each reference is looked at
// once, however many others refer to it: without that, branches of branches cost their number to the power of
// their depth. Errors are the budget's. The schema must outlive it; not thread-safe.
class SchemaValues {
 public:
  SchemaValues(const nlohmann::ordered_json* root, StepBudget* budget) : root_(root), budget_(budget) {}

  // The schema at "#/a/b", null where there is none.
  absl::StatusOr<const nlohmann::ordered_json*> Resolve(const std::string& reference);

  // The schema that references lead to; null where they name no place.
  absl::StatusOr<const nlohmann::ordered_json*> Follow(const nlohmann::ordered_json* schema);

  // True where no value can match both schemas, as far as types, listed values and properties that both
  // require tell. False where it cannot be told.
  absl::StatusOr<bool> AreDisjoint(const nlohmann::ordered_json& one, const nlohmann::ordered_json& other);

 private:
  using Json = nlohmann::ordered_json;
  // Listed values by number, ascending: equal values have equal numbers.
  using ValueIds = std::vector<int32_t>;
  struct Facts {
    TypeSet types = kAnyType;
    std::optional<ValueIds> values;
    // Properties that are required and list their values, by name.
    std::vector<std::pair<absl::string_view, ValueIds>> tags;
  };

  // Types that any branch may have; all where it cannot be told.
  absl::StatusOr<TypeSet> PossibleTypes(const Json& schema, int depth);
  absl::StatusOr<const Facts*> FactsOf(const Json& schema);
  absl::StatusOr<ValueIds> Number(const ValueList& values);
  absl::StatusOr<bool> ShareNone(const ValueIds& one, const ValueIds& other);

  const Json* const root_;
  StepBudget* const budget_;
  absl::flat_hash_map<std::string, const Json*> resolved_;
  absl::flat_hash_map<const Json*, TypeSet> types_;  // of places being looked at: all
  absl::flat_hash_map<const Json*, std::unique_ptr<const Facts>> facts_;
  absl::flat_hash_map<std::string, int32_t> numbers_;  // of values, by their canonical text
};

}  // namespace aludel
