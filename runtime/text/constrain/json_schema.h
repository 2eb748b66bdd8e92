#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/grammar.h"

namespace aludel {

// Compiles a JSON schema (2020-12; older `definitions` too) to a grammar of texts that validate. Supported:
//   type (one or several), enum, const, true and {} (any value), $ref to a place in the schema (recursive,
//   too), anyOf, oneOf whose branches cannot match together, allOf of one schema, not of type, const, enum, pattern,
//   required or anyOf of these;
//   objects: properties (written in their order), required, additionalProperties and patternProperties (where neither
//     lets a name pass and there are properties, no others are generated), propertyNames, minProperties (members that
//     are not listed count as one), maxProperties, dependentRequired;
//   arrays: items, prefixItems (where items is absent no others are generated), minItems, maxItems, uniqueItems of
//     listed values, contains, minContains, and maxContains of listed values;
//   strings: minLength, maxLength, pattern (regex/regex_tree.h), and format of the names in regex/string_formats.cc;
//   numbers and integers: minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf a whole number.
// Every other keyword that would refuse values is InvalidArgument with its place and name; annotations, unknown formats
// and unknown keywords mean nothing. The grammar gives a subset of what validates: see JsonRules for the bounds
// on white space and digits. Also InvalidArgument: a schema without any finite value, and one that takes more
// than kMaxCompileSteps, with the place where they ended. FailedPrecondition: one that asks for nothing else,
// but for more states than a grammar may have. Cancelled where CheckStop() says so.
absl::StatusOr<Grammar> CompileJsonSchema(const nlohmann::ordered_json& schema, absl::string_view prefix,
                                          absl::string_view suffix);

}  // namespace aludel
