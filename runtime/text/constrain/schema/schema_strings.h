#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/regex/char_dfa.h"
#include "runtime/text/constrain/regex/character_rules.h"
#include "runtime/text/constrain/schema/schema_exclusions.h"
#include "runtime/text/constrain/schema/schema_keywords.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// What a schema says of strings: pattern, format, minLength, maxLength and what is refused, as one automaton. Each
// pattern is compiled once. Errors are InvalidArgument with the place, or the budget's. What it is given must outlive it;
// not thread-safe.
class SchemaStrings {
 public:
  using NodeId = GrammarBuilder::NodeId;

  SchemaStrings(JsonRules* json, CharacterRules* characters, StepBudget* budget)
      : json_(json), characters_(characters), budget_(budget) {}

  // A string, quotes included. Without a pattern its characters may be escaped in every way, else in one.
  absl::StatusOr<NodeId> String(const nlohmann::ordered_json& schema, const Exclusions& refused,
                                const SchemaPlace& where, NodeId next);
  // A string of a language that is not empty.
  absl::StatusOr<NodeId> String(const CharDfa& language, NodeId next);
  // Its language, null where the keywords allow all strings; without its listed values.
  absl::StatusOr<std::shared_ptr<const CharDfa>> LanguageOf(const nlohmann::ordered_json& schema,
                                                            const Exclusions& refused,
                                                            const SchemaPlace& where);
  // Strings in which a pattern matches.
  absl::StatusOr<std::shared_ptr<const CharDfa>> Pattern(absl::string_view pattern, const SchemaPlace& where);
  // Whether a listed value is none of those that are refused.
  absl::StatusOr<bool> Allows(const Exclusions& refused, const nlohmann::ordered_json& value,
                              const SchemaPlace& where);

 private:
  using Dfa = std::shared_ptr<const CharDfa>;

  JsonRules* const json_;
  CharacterRules* const characters_;
  StepBudget* const budget_;
  absl::flat_hash_map<std::string, Dfa> patterns_;
};

}  // namespace aludel
