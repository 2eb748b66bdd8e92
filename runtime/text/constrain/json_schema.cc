#include "runtime/text/constrain/json_schema.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/regex/character_rules.h"
#include "runtime/text/constrain/schema/schema_exclusions.h"
#include "runtime/text/constrain/schema/schema_keywords.h"
#include "runtime/text/constrain/schema/schema_strings.h"
#include "runtime/text/constrain/schema/schema_tools.h"
#include "runtime/text/constrain/schema/schema_values.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

constexpr int kMaxCompileDepth = 256;
constexpr int64_t kNodesPerStep = 4;

using Place = SchemaPlace;

class SchemaCompiler {
 public:
  SchemaCompiler(const ordered_json& root, StepBudget* budget)
      : root_(root),
        budget_(budget),
        values_(&root, budget),
        json_(&builder_),
        characters_(&builder_, budget),
        strings_(&json_, &characters_, budget),
        tools_{
            .builder = &builder_,
            .json = &json_,
            .strings = &strings_,
            .values = &values_,
            .budget = budget,
            .compile = [this](const ordered_json& schema, const Place& where) { return At(schema, where); }} {
  }

  absl::StatusOr<Grammar> Compile(absl::string_view prefix, absl::string_view suffix) {
    ALUDEL_ASSIGN_OR_RETURN(const Rule value, At(root_, Place{nullptr, "#"}));
    const NodeId end = builder_.Literal(suffix, builder_.ReturnNode());
    const Rule text = builder_.MakeRule(builder_.Literal(prefix, builder_.Call(value, end)));
    absl::StatusOr<Grammar> grammar = builder_.Finish(text);
    if (grammar.ok()) return grammar;
    const std::string message = absl::StrCat("the schema ", grammar.status().message());
    if (absl::IsResourceExhausted(grammar.status())) return absl::FailedPreconditionError(message);
    return absl::InvalidArgumentError(message);
  }

 private:
  // What the budget said, with the place.
  static absl::Status Over(const Place& where, const absl::Status& status) {
    return absl::IsResourceExhausted(status) ? SchemaError(where, status.message()) : status;
  }
  absl::Status Spend(int64_t steps, const Place& where) {
    const absl::Status status = budget_->Spend(steps);
    return status.ok() ? status : Over(where, status);
  }

  // One rule per place of the schema, made when it is first needed.
  absl::StatusOr<Rule> At(const ordered_json& schema, const Place& where) {
    ALUDEL_RETURN_IF_ERROR(Spend(1 + static_cast<int64_t>(schema.is_object() ? schema.size() : 0), where));
    const auto [it, added] = rules_.try_emplace(&schema, 0);
    if (!added) return it->second;
    const Rule rule = builder_.NewRule();
    it->second = rule;
    if (++depth_ > kMaxCompileDepth) {
      return SchemaError(where, "the way there has too many levels and references");
    }
    const absl::StatusOr<NodeId> start = Start(schema, where);
    if (!start.ok()) return Over(where, start.status());
    --depth_;
    builder_.Define(rule, *start);
    // A node costs a step, too: what a few bytes ask for may be many.
    const auto nodes = static_cast<int64_t>(builder_.size());
    ALUDEL_RETURN_IF_ERROR(Spend((nodes - std::exchange(nodes_spent_, nodes)) / kNodesPerStep, where));
    return rule;
  }

  absl::StatusOr<NodeId> Start(const ordered_json& schema, const Place& where) {
    const NodeId end = builder_.ReturnNode();
    if (schema == true) return builder_.Call(json_.any(), end);
    if (schema == false) return SchemaError(where, "false allows no value");
    if (!schema.is_object())
      return SchemaError(where, absl::StrCat("is ", schema.type_name(), ", want a schema"));
    ALUDEL_RETURN_IF_ERROR(CheckKeywords(schema, where));
    if (schema.contains("$ref")) return Reference(schema["$ref"], where);
    if (schema.contains("const") || schema.contains("enum")) return Listed(schema, where);
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      if (schema.contains(keyword)) return Branches(schema[keyword], keyword, Place{&where, keyword});
    }
    return Typed(schema, where);
  }

  absl::StatusOr<NodeId> Reference(const ordered_json& reference, const Place& where) {
    if (!reference.is_string()) return SchemaError(where, "$ref is no string");
    const auto& pointer = reference.get_ref<const std::string&>();
    const absl::StatusOr<const ordered_json*> target = values_.Resolve(pointer);
    if (!target.ok()) return Over(where, target.status());
    if (*target == nullptr) {
      return SchemaError(where, absl::StrCat("$ref \"", Shown(pointer), "\" names no place in this schema"));
    }
    ALUDEL_ASSIGN_OR_RETURN(const Rule rule, At(**target, Place{nullptr, pointer}));
    return builder_.Call(rule, builder_.ReturnNode());
  }

  absl::StatusOr<NodeId> Listed(const ordered_json& schema, const Place& where) {
    if (schema.contains("enum") && !schema["enum"].is_array()) return SchemaError(where, "enum is no list");
    if (schema.contains("type")) {
      if (const auto types = TypesOf(schema); !types.ok())
        return SchemaError(where, types.status().message());
    }
    const auto values = ListedValues(schema);
    if (!values || values->empty()) return SchemaError(where, "lists no value of its type");
    ALUDEL_RETURN_IF_ERROR(Spend(static_cast<int64_t>(values->size()), where));
    ALUDEL_ASSIGN_OR_RETURN(const Exclusions refused, ReadExclusions(schema, where));
    std::vector<std::string> texts;
    for (const ordered_json* value : *values) {
      ALUDEL_ASSIGN_OR_RETURN(const bool allowed, strings_.Allows(refused, *value, where));
      if (allowed) texts.push_back(WriteValue(*value));
    }
    if (texts.empty()) return SchemaError(where, "\"not\" refuses every listed value");
    return builder_.OneOfLiterals(std::move(texts), builder_.ReturnNode());
  }

  absl::StatusOr<NodeId> Branches(const ordered_json& branches, const std::string& keyword,
                                  const Place& where) {
    if (!branches.is_array() || branches.empty()) return SchemaError(where, "want a list of schemas");
    if (keyword == "allOf" && branches.size() > 1) {
      return SchemaError(where, "\"allOf\" of more than one schema is not supported");
    }
    std::vector<NodeId> ways;
    for (size_t i = 0; i < branches.size(); ++i) {
      for (size_t j = 0; j < i && keyword == "oneOf"; ++j) {
        const absl::StatusOr<bool> disjoint = values_.AreDisjoint(branches[i], branches[j]);
        if (!disjoint.ok()) return Over(where, disjoint.status());
        if (*disjoint) continue;
        return SchemaError(
            where, absl::StrCat("a value might match both branch ", j, " and branch ", i,
                                ": \"oneOf\" is supported where types, listed values or a property that "
                                "both require tell its branches apart; \"anyOf\" needs none of that"));
      }
      ALUDEL_ASSIGN_OR_RETURN(const Rule rule, At(branches[i], Place{&where, "", static_cast<int64_t>(i)}));
      ways.push_back(builder_.Call(rule, builder_.ReturnNode()));
    }
    return builder_.OneOf(ways);
  }

  absl::StatusOr<NodeId> Typed(const ordered_json& schema, const Place& where) {
    const absl::StatusOr<TypeSet> types = TypesOf(schema);
    if (!types.ok()) return SchemaError(where, types.status().message());
    ALUDEL_ASSIGN_OR_RETURN(const Exclusions refused, ReadExclusions(schema, where));
    const NodeId end = builder_.ReturnNode();
    if (*types == kAnyType && !schema.contains("type") && refused.empty())
      return builder_.Call(json_.any(), end);
    const auto left = static_cast<TypeSet>(*types & ~refused.types);
    if (left == 0) return SchemaError(where, "\"not\" refuses every value of its type");
    if (!refused.ValuesOf(left & (kArray | kObject)).empty()) {
      return SchemaError(where, "\"not\" of a listed array or object is not supported");
    }
    std::vector<NodeId> ways;
    const auto add = [&ways](absl::StatusOr<NodeId> start) {
      if (start.ok()) ways.push_back(*start);
      return start.status();
    };
    if ((left & kObject) != 0) ALUDEL_RETURN_IF_ERROR(add(CompileObject(tools_, schema, refused, where)));
    if ((left & kArray) != 0) ALUDEL_RETURN_IF_ERROR(add(CompileArray(tools_, schema, where)));
    if ((left & kString) != 0) ALUDEL_RETURN_IF_ERROR(add(strings_.String(schema, refused, where, end)));
    if ((left & (kInteger | kFraction)) != 0) {
      ALUDEL_RETURN_IF_ERROR(add(CompileNumber(tools_, schema, left, refused, where)));
    }
    for (const auto& [type, values] : {std::pair(kBoolean, std::vector<ordered_json>{true, false}),
                                       std::pair(kNull, std::vector<ordered_json>{nullptr})}) {
      for (const ordered_json& value : values) {
        if ((left & type) == 0) continue;
        ALUDEL_ASSIGN_OR_RETURN(const bool allowed, strings_.Allows(refused, value, where));
        if (allowed) ways.push_back(builder_.Literal(value.dump(), end));
      }
    }
    if (ways.empty()) return SchemaError(where, "\"not\" refuses every value of its type");
    return builder_.OneOf(ways);
  }

  const ordered_json& root_;
  StepBudget* const budget_;
  SchemaValues values_;
  GrammarBuilder builder_;
  JsonRules json_;
  CharacterRules characters_;
  SchemaStrings strings_;
  const SchemaTools tools_;
  absl::flat_hash_map<const ordered_json*, Rule> rules_;
  int depth_ = 0;  // of places being compiled
  int64_t nodes_spent_ = 0;
};

}  // namespace

absl::StatusOr<Grammar> CompileJsonSchema(const ordered_json& schema, absl::string_view prefix,
                                          absl::string_view suffix) {
  StepBudget budget(kMaxCompileSteps);
  return SchemaCompiler(schema, &budget).Compile(prefix, suffix);
}

}  // namespace aludel
