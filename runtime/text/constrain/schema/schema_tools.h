#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/schema/schema_exclusions.h"
#include "runtime/text/constrain/schema/schema_keywords.h"
#include "runtime/text/constrain/schema/schema_strings.h"
#include "runtime/text/constrain/schema/schema_values.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// What the parts of one compilation share. Owned by SchemaCompiler (json_schema.cc).
struct SchemaTools {
  GrammarBuilder* builder = nullptr;
  JsonRules* json = nullptr;
  SchemaStrings* strings = nullptr;
  SchemaValues* values = nullptr;
  StepBudget* budget = nullptr;
  // The rule of a place below.
  std::function<absl::StatusOr<GrammarBuilder::Rule>(const nlohmann::ordered_json&, const SchemaPlace&)>
      compile;
};

// How a listed value is written.
inline std::string WriteValue(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Arrays, objects and numbers of what the keywords of one place say. Errors are InvalidArgument with the place, or the budget's.
absl::StatusOr<GrammarBuilder::NodeId> CompileArray(const SchemaTools& tools,
                                                    const nlohmann::ordered_json& schema,
                                                    const SchemaPlace& where);
absl::StatusOr<GrammarBuilder::NodeId> CompileObject(const SchemaTools& tools,
                                                     const nlohmann::ordered_json& schema,
                                                     const Exclusions& refused, const SchemaPlace& where);
// Of `types` integers, fractions or both.
absl::StatusOr<GrammarBuilder::NodeId> CompileNumber(const SchemaTools& tools,
                                                     const nlohmann::ordered_json& schema, TypeSet types,
                                                     const Exclusions& refused, const SchemaPlace& where);

}  // namespace aludel
