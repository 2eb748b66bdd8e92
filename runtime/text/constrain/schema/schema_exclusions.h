#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/schema/schema_keywords.h"
#include "runtime/text/constrain/schema/schema_values.h"

namespace aludel {

// What "not" refuses, as far as a grammar can leave it out. Points into the schema.
struct Exclusions {
  TypeSet types = 0;                                    // values of these
  ValueList values;                                     // these values
  absl::flat_hash_set<std::string> texts;               // their canonical texts
  std::vector<const nlohmann::ordered_json*> patterns;  // strings in which one of these matches
  std::vector<const nlohmann::ordered_json*> required;  // objects with all names of one of these lists

  bool empty() const { return types == 0 && values.empty() && patterns.empty() && required.empty(); }
  // The listed values of these types.
  ValueList ValuesOf(TypeSet types) const;
};

// Of a schema's "not": type, const, enum, pattern, required, or anyOf of these. Everything else is InvalidArgument with
// its place.
absl::StatusOr<Exclusions> ReadExclusions(const nlohmann::ordered_json& schema, const SchemaPlace& where);

}  // namespace aludel
