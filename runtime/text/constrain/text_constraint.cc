#include "runtime/text/constrain/text_constraint.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/gbnf/gbnf.h"
#include "runtime/text/constrain/json_schema.h"
#include "runtime/text/constrain/ordered_json.h"
#include "runtime/text/constrain/regex/char_dfa.h"
#include "runtime/text/constrain/regex/character_rules.h"
#include "runtime/text/constrain/step_budget.h"
#include "runtime/text/constrain/thinking_rules.h"

namespace aludel {
namespace {

absl::StatusOr<Grammar> CompileSchema(const TextConstraint& constraint) {
  const absl::StatusOr<nlohmann::ordered_json> schema = ParseOrdered(constraint.json_schema);
  if (absl::IsCancelled(schema.status())) return schema.status();
  if (!schema.ok()) return absl::InvalidArgumentError(absl::StrCat("the schema ", schema.status().message()));
  return CompileJsonSchema(*schema, constraint.prefix, constraint.suffix);
}

absl::StatusOr<Grammar> CompileRegex(absl::string_view regex, StepBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const RegexTree tree, ParseRegex(regex, budget));
  ALUDEL_ASSIGN_OR_RETURN(const CharDfa dfa, CharDfa::Make(tree, CharDfa::Match::kWhole, budget));
  if (dfa.empty()) return absl::InvalidArgumentError("matches no text");
  GrammarBuilder builder;
  CharacterRules characters(&builder, budget);
  ALUDEL_ASSIGN_OR_RETURN(const GrammarBuilder::NodeId start,
                          characters.Text(dfa, CharacterRules::Writing::kPlain, builder.ReturnNode()));
  return builder.Finish(builder.MakeRule(start));
}

// Errors of what is named by `what`; the budget's and the builder's, too.
absl::StatusOr<Grammar> Named(absl::string_view what, int64_t spent, absl::StatusOr<Grammar> grammar) {
  if (grammar.ok() || absl::IsCancelled(grammar.status())) return grammar;
  const std::string message = absl::StrCat("the ", what, " ", grammar.status().message());
  // Too many steps are the author's fault; too many states alone are our limit.
  if (absl::IsResourceExhausted(grammar.status()) && spent <= kMaxCompileSteps) {
    return absl::FailedPreconditionError(message);
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace

namespace {

// Without the thoughts in front.
absl::StatusOr<Grammar> CompileAnswer(const TextConstraint& constraint) {
  const bool regex = !constraint.regex.empty(), grammar = !constraint.grammar.empty();
  const absl::string_view what = regex ? "regex" : grammar ? "grammar" : "schema";
  if (regex + grammar + !constraint.json_schema.empty() > 1) {
    return absl::InvalidArgumentError("the constraint has more than one of a schema, a regex and a grammar");
  }
  const std::string& text = regex ? constraint.regex : grammar ? constraint.grammar : constraint.json_schema;
  if (text.size() > kMaxSchemaBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", what, " has ", text.size(), " bytes, want at most ", kMaxSchemaBytes));
  }
  const size_t literals = constraint.prefix.size() + constraint.suffix.size();
  const size_t bytes = literals + constraint.think_begin.size() + constraint.think_end.size();
  if (bytes > kMaxLiteralBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the constraint's literals have ", bytes, " bytes, want at most ", kMaxLiteralBytes));
  }
  if (!regex && !grammar) return CompileSchema(constraint);
  if (literals > 0) {
    return absl::InvalidArgumentError(absl::StrCat("literals around a ", what, " are not supported"));
  }
  StepBudget budget(kMaxCompileSteps);
  absl::StatusOr<Grammar> compiled = regex ? CompileRegex(text, &budget) : CompileGbnf(text, &budget);
  return Named(what, budget.spent(), std::move(compiled));
}

}  // namespace

absl::StatusOr<Grammar> CompileConstraint(const TextConstraint& constraint) {
  ALUDEL_ASSIGN_OR_RETURN(Grammar answer, CompileAnswer(constraint));
  if (!constraint.call_schema.empty()) {
    absl::StatusOr<Grammar> call = CompileAnswer({.prefix = constraint.call_prefix,
                                                  .json_schema = constraint.call_schema,
                                                  .suffix = constraint.call_suffix});
    if (!call.ok()) {
      absl::Status status = call.status();
      status.SetPayload(kOfCall, absl::Cord());
      return status;
    }
    answer = EitherOf(std::move(answer), *call);
  }
  if (constraint.think_end.empty()) return answer;
  return WithThoughts(std::move(answer), constraint.think_begin, constraint.think_end);
}

}  // namespace aludel
