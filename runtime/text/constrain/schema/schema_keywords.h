#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// What one place of a JSON schema says by its own keywords, read and checked. Pure: nothing here follows a
// reference, looks at a place below or makes a grammar. Errors are InvalidArgument and name the place.

// Where in the schema something stands. A list on the stack, written out only where an error names it: paths
// made on the way down would cost their length at every step.
struct SchemaPlace {
  const SchemaPlace* above;  // null: `name` is the whole path, "#" or a reference
  absl::string_view name;
  int64_t index = -1;  // in a list, in place of a name

  std::string Text() const;
};

absl::Status SchemaError(const SchemaPlace& where, absl::string_view message);

// Whether a keyword of this name may refuse values, supported or not.
bool IsConstraint(absl::string_view keyword);

// Fails where an object holds a keyword that is not supported, or two that are not supported together.
absl::Status CheckKeywords(const nlohmann::ordered_json& schema, const SchemaPlace& where);

// How many of something there may be.
struct CountBounds {
  int64_t least = 0;
  int64_t most = -1;  // -1: any number
};
absl::StatusOr<CountBounds> ReadCounts(const nlohmann::ordered_json& schema, const char* least,
                                       const char* most, const SchemaPlace& where);

// Numbers between two integers, as JsonRules writes them.
struct NumberBounds {
  int64_t min = 0;
  int64_t max = 0;
  bool at_min = true;  // whether the bound itself is one
  bool at_max = true;
  bool given = false;  // else the bounds are those of JsonRules
};
// Without `fractions` both bounds belong to it.
absl::StatusOr<NumberBounds> ReadNumberBounds(const nlohmann::ordered_json& schema, bool fractions,
                                              const SchemaPlace& where);

// What numbers must be a multiple of: 1 where nothing is said. MultipleRules can divide by it.
absl::StatusOr<int64_t> ReadDivisor(const nlohmann::ordered_json& schema, const SchemaPlace& where);

// Of an object; into the schema, or into empty values.
struct ObjectKeywords {
  const nlohmann::ordered_json& properties;  // an object
  const nlohmann::ordered_json& required;    // a list
  const nlohmann::ordered_json* additional;  // null: absent
  bool more = false;                         // others say something, too

  // Whether members may be generated that are not listed.
  bool open() const;
  // Whether any object will do.
  bool any() const;
};
absl::StatusOr<ObjectKeywords> ReadObject(const nlohmann::ordered_json& schema, const SchemaPlace& where);

}  // namespace aludel
