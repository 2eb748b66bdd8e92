#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/grammar.h"

namespace aludel {

// What a generated text must look like: a JSON value that validates against `json_schema`, between
// two literals.
struct TextConstraint {
  std::string prefix;
  std::string json_schema;
  std::string suffix;

  bool operator==(const TextConstraint&) const = default;
};

// Compiles a JSON schema (2020-12; older `definitions` too) to a grammar of texts that validate. Supported:
//   type (one or several), enum, const, true and {} (any value), $ref to a place in the schema (recursive,
//   too), anyOf, oneOf whose branches cannot match together, allOf of one schema; objects: properties
//   (written in their order), required, additionalProperties (where it is absent and there
//     are properties, no others are generated);
//   arrays: items, minItems, maxItems;  strings: minLength, maxLength;
//   numbers and integers: minimum, maximum, exclusiveMinimum, exclusiveMaximum.
// Every other keyword that would refuse values is InvalidArgument with its place and name; annotations and
// unknown keywords mean nothing. The grammar gives a subset of what validates: see JsonRules for the bounds
// on white space and digits. Also InvalidArgument: a schema without any finite value, and one that takes more
// than kMaxCompileSteps, with the place where they ended. FailedPrecondition: one that asks for nothing else,
// but for more states than a grammar may have. Cancelled where CheckStop() says so.
inline constexpr int64_t kMaxCompileSteps = 1 << 20;
absl::StatusOr<Grammar> CompileJsonSchema(const nlohmann::ordered_json& schema, absl::string_view prefix,
                                          absl::string_view suffix);
// The same for its text; FailedPrecondition also for one of more bytes than these.
inline constexpr size_t kMaxSchemaBytes = 256 << 10;
inline constexpr size_t kMaxLiteralBytes = 4 << 10;  // prefix and suffix together
absl::StatusOr<Grammar> CompileConstraint(const TextConstraint& constraint);

}  // namespace aludel
