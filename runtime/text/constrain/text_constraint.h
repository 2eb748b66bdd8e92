#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/grammar.h"

namespace aludel {

// What a generated text must look like: a JSON value that validates against `json_schema`, between two literals; or a
// text that `regex` matches as a whole; or one of a grammar in GBNF. One of the three; the literals stand around a JSON
// value alone.
struct TextConstraint {
  std::string prefix;
  std::string json_schema;
  std::string suffix;
  std::string regex = {};
  std::string grammar = {};

  bool operator==(const TextConstraint&) const = default;
};

inline constexpr size_t kMaxSchemaBytes = 256 << 10;  // of a schema, a regex or a grammar
inline constexpr size_t kMaxLiteralBytes = 4 << 10;   // prefix and suffix together

// Compiles it within kMaxCompileSteps. InvalidArgument says what is wrong, not supported, or takes more steps;
// FailedPrecondition what is larger than the above or needs more states than a grammar may have. Cancelled where
// CheckStop() says so. See json_schema.h, regex/regex_tree.h and gbnf/gbnf_tree.h for what is supported.
absl::StatusOr<Grammar> CompileConstraint(const TextConstraint& constraint);

}  // namespace aludel
