#pragma once

#include <array>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/grammar.h"

namespace aludel {

// What a generated text must look like: a JSON value that validates against `json_schema`, between two literals; or a
// text that `regex` matches as a whole; or one of a grammar in GBNF. One of the three; the literals stand around a JSON
// value alone. Or, where call_schema is not empty, a JSON value of that one between literals of its own. In front of either
// may stand thoughts (thinking_rules.h), where think_end is not empty.
struct TextConstraint {
  std::string prefix;
  std::string json_schema;
  std::string suffix;
  std::string regex = {};
  std::string grammar = {};
  std::string think_begin = {};
  std::string think_end = {};
  std::string call_prefix = {};
  std::string call_schema = {};
  std::string call_suffix = {};

  bool operator==(const TextConstraint&) const = default;
  std::array<const std::string*, 10> parts() const {
    return {&prefix,      &json_schema, &suffix,      &regex,       &grammar,
            &think_begin, &think_end,   &call_prefix, &call_schema, &call_suffix};
  }
};

// Of a message that has the same fields.
template <typename Message>
TextConstraint ConstraintOf(const Message& wire) {
  return {.prefix = wire.prefix(),
          .json_schema = wire.json_schema(),
          .suffix = wire.suffix(),
          .regex = wire.regex(),
          .grammar = wire.grammar(),
          .think_begin = wire.think_begin(),
          .think_end = wire.think_end(),
          .call_prefix = wire.call_prefix(),
          .call_schema = wire.call_schema(),
          .call_suffix = wire.call_suffix()};
}

inline constexpr size_t kMaxSchemaBytes = 256 << 10;  // of a schema, a regex or a grammar
inline constexpr size_t kMaxLiteralBytes = 4 << 10;   // all others together

// Compiles it within kMaxCompileSteps. InvalidArgument says what is wrong, not supported, or takes more steps;
// FailedPrecondition what is larger than the above or needs more states than a grammar may have. Cancelled where
// CheckStop() says so. What is wrong with the call is an error with the payload kOfCall. See json_schema.h,
// regex/regex_tree.h and gbnf/gbnf_tree.h for what is supported.
inline constexpr char kOfCall[] = "aludel/call";
absl::StatusOr<Grammar> CompileConstraint(const TextConstraint& constraint);

}  // namespace aludel
