#include "runtime/text/constrain/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/ordered_json.h"
#include "runtime/text/constrain/schema_values.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

// Keywords that refuse values and that we do not turn into a grammar.
constexpr std::array<absl::string_view, 26> kUnsupported = {"pattern",
                                                            "format",
                                                            "multipleOf",
                                                            "uniqueItems",
                                                            "minProperties",
                                                            "maxProperties",
                                                            "patternProperties",
                                                            "propertyNames",
                                                            "dependentRequired",
                                                            "dependentSchemas",
                                                            "dependencies",
                                                            "not",
                                                            "if",
                                                            "then",
                                                            "else",
                                                            "prefixItems",
                                                            "contains",
                                                            "minContains",
                                                            "maxContains",
                                                            "unevaluatedItems",
                                                            "unevaluatedProperties",
                                                            "additionalItems",
                                                            "$dynamicRef",
                                                            "$recursiveRef",
                                                            "contentSchema",
                                                            "contentEncoding"};
// Those that we do, beside the ones that stand for a whole schema.
constexpr std::array<absl::string_view, 13> kConstraints = {"type",
                                                            "properties",
                                                            "required",
                                                            "additionalProperties",
                                                            "items",
                                                            "minItems",
                                                            "maxItems",
                                                            "minLength",
                                                            "maxLength",
                                                            "minimum",
                                                            "maximum",
                                                            "exclusiveMinimum",
                                                            "exclusiveMaximum"};
constexpr std::array<absl::string_view, 6> kWhole = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

constexpr int kMaxCompileDepth = 256;
constexpr int64_t kNodesPerStep = 4;

// Where in the schema something stands. A list on the stack, written out only where an error names it: paths
// made on the way down would cost their length at every step.
struct Place {
  const Place* above;  // null: `name` is the whole path, "#" or a reference
  absl::string_view name;
  int64_t index = -1;  // in a list, in place of a name

  std::string Text() const {
    std::vector<std::string> parts;
    for (const Place* at = this; at != nullptr; at = at->above) {
      parts.push_back(at->index < 0 ? Shown(at->name) : absl::StrCat(at->index));
    }
    std::reverse(parts.begin(), parts.end());
    return absl::StrJoin(parts, "/");
  }
};

// Whether an unsupported keyword says nothing here, as libraries write it: zod's records have a propertyNames of strings.
bool RefusesNothing(const std::string& key, const ordered_json& value) {
  if (key == "uniqueItems" || key == "not") return value == false;
  if (key == "minProperties") return value == 0;
  if (key == "unevaluatedItems" || key == "unevaluatedProperties" || key == "additionalItems")
    return value == true;
  if (key == "patternProperties" || key == "dependentSchemas" || key == "dependencies") {
    return value.is_object() && value.empty();
  }
  if (key == "dependentRequired") {
    return value.is_object() &&
           absl::c_all_of(value, [](const ordered_json& names) { return names.is_array() && names.empty(); });
  }
  if (key != "propertyNames") return false;
  static const ordered_json kStrings = {{"type", "string"}};
  return value == true || value == kStrings || (value.is_object() && value.empty());
}

class SchemaCompiler {
 public:
  SchemaCompiler(const ordered_json& root, StepBudget* budget)
      : root_(root), budget_(budget), values_(&root, budget), json_(&builder_) {}

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
  static absl::Status Fail(const Place& where, absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(where.Text(), ": ", message));
  }

  // What the budget said, with the place.
  static absl::Status Over(const Place& where, const absl::Status& status) {
    return absl::IsResourceExhausted(status) ? Fail(where, status.message()) : status;
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
    if (++depth_ > kMaxCompileDepth) return Fail(where, "the way there has too many levels and references");
    ALUDEL_ASSIGN_OR_RETURN(const NodeId start, Start(schema, where));
    --depth_;
    builder_.Define(rule, start);
    // A node costs a step, too: what a few bytes ask for may be many.
    const auto nodes = static_cast<int64_t>(builder_.size());
    ALUDEL_RETURN_IF_ERROR(Spend((nodes - std::exchange(nodes_spent_, nodes)) / kNodesPerStep, where));
    return rule;
  }

  absl::StatusOr<NodeId> Start(const ordered_json& schema, const Place& where) {
    const NodeId end = builder_.ReturnNode();
    if (schema == true) return builder_.Call(json_.any(), end);
    if (schema == false) return Fail(where, "false allows no value");
    if (!schema.is_object()) return Fail(where, absl::StrCat("is ", schema.type_name(), ", want a schema"));
    ALUDEL_RETURN_IF_ERROR(CheckKeywords(schema, where));
    if (schema.contains("$ref")) return Reference(schema["$ref"], where);
    if (schema.contains("const") || schema.contains("enum")) return Listed(schema, where);
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      if (schema.contains(keyword)) return Branches(schema[keyword], keyword, Place{&where, keyword});
    }
    return Typed(schema, where);
  }

  absl::Status CheckKeywords(const ordered_json& schema, const Place& where) const {
    absl::string_view whole;
    for (const auto& [key, value] : schema.items()) {
      if (absl::c_linear_search(kUnsupported, key) && !RefusesNothing(key, value)) {
        return Fail(where, absl::StrCat("keyword \"", key, "\" is not supported"));
      }
      if (!absl::c_linear_search(kWhole, key)) continue;
      if (!whole.empty())
        return Fail(where, absl::StrCat("\"", key, "\" beside \"", whole, "\" is not supported"));
      whole = *absl::c_find(kWhole, key);
    }
    if (whole.empty()) return absl::OkStatus();
    for (const auto& [key, value] : schema.items()) {
      // A type beside a list of values picks from them.
      if (key == "type" && (whole == "const" || whole == "enum")) continue;
      if (absl::c_linear_search(kConstraints, key)) {
        return Fail(where, absl::StrCat("\"", key, "\" beside \"", whole, "\" is not supported"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> Reference(const ordered_json& reference, const Place& where) {
    if (!reference.is_string()) return Fail(where, "$ref is no string");
    const auto& pointer = reference.get_ref<const std::string&>();
    const absl::StatusOr<const ordered_json*> target = values_.Resolve(pointer);
    if (!target.ok()) return Over(where, target.status());
    if (*target == nullptr) {
      return Fail(where, absl::StrCat("$ref \"", Shown(pointer), "\" names no place in this schema"));
    }
    ALUDEL_ASSIGN_OR_RETURN(const Rule rule, At(**target, Place{nullptr, pointer}));
    return builder_.Call(rule, builder_.ReturnNode());
  }

  absl::StatusOr<NodeId> Listed(const ordered_json& schema, const Place& where) {
    if (schema.contains("enum") && !schema["enum"].is_array()) return Fail(where, "enum is no list");
    if (schema.contains("type")) {
      if (const auto types = TypesOf(schema); !types.ok()) return Fail(where, types.status().message());
    }
    const auto values = ListedValues(schema);
    if (!values || values->empty()) return Fail(where, "lists no value of its type");
    ALUDEL_RETURN_IF_ERROR(Spend(static_cast<int64_t>(values->size()), where));
    std::vector<std::string> texts;
    for (const ordered_json* value : *values) {
      texts.push_back(value->dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    }
    return builder_.OneOfLiterals(std::move(texts), builder_.ReturnNode());
  }

  absl::StatusOr<NodeId> Branches(const ordered_json& branches, const std::string& keyword,
                                  const Place& where) {
    if (!branches.is_array() || branches.empty()) return Fail(where, "want a list of schemas");
    if (keyword == "allOf" && branches.size() > 1) {
      return Fail(where, "\"allOf\" of more than one schema is not supported");
    }
    std::vector<NodeId> ways;
    for (size_t i = 0; i < branches.size(); ++i) {
      for (size_t j = 0; j < i && keyword == "oneOf"; ++j) {
        const absl::StatusOr<bool> disjoint = values_.AreDisjoint(branches[i], branches[j]);
        if (!disjoint.ok()) return Over(where, disjoint.status());
        if (*disjoint) continue;
        return Fail(where,
                    absl::StrCat("a value might match both branch ", j, " and branch ", i,
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
    if (!types.ok()) return Fail(where, types.status().message());
    const NodeId end = builder_.ReturnNode();
    if (*types == kAnyType && !schema.contains("type")) return builder_.Call(json_.any(), end);
    std::vector<NodeId> ways;
    const auto add = [&ways](absl::StatusOr<NodeId> start) {
      if (start.ok()) ways.push_back(*start);
      return start.status();
    };
    if ((*types & kObject) != 0) ALUDEL_RETURN_IF_ERROR(add(Object(schema, where)));
    if ((*types & kArray) != 0) ALUDEL_RETURN_IF_ERROR(add(Array(schema, where)));
    if ((*types & kString) != 0) ALUDEL_RETURN_IF_ERROR(add(String(schema, where)));
    if ((*types & kInteger) != 0)
      ALUDEL_RETURN_IF_ERROR(add(Number(schema, (*types & kFraction) != 0, where)));
    if ((*types & kBoolean) != 0) {
      ways.push_back(builder_.Literal("true", end));
      ways.push_back(builder_.Literal("false", end));
    }
    if ((*types & kNull) != 0) ways.push_back(builder_.Literal("null", end));
    return builder_.OneOf(ways);
  }

  // A bound that counts something; `fallback` where it is absent.
  absl::StatusOr<int64_t> Count(const ordered_json& schema, const char* keyword, int64_t fallback,
                                const Place& where) const {
    const auto it = schema.find(keyword);
    if (it == schema.end()) return fallback;
    if (!it->is_number_unsigned() || it->get<uint64_t>() > uint64_t{1} << 40) {
      return Fail(where, absl::StrCat(keyword, " is ", Shown(it->dump()), ", want a number of things"));
    }
    return it->get<int64_t>();
  }

  absl::StatusOr<std::pair<int64_t, int64_t>> Counts(const ordered_json& schema, const char* least,
                                                     const char* most, const Place& where) const {
    ALUDEL_ASSIGN_OR_RETURN(const int64_t min, Count(schema, least, 0, where));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t max, Count(schema, most, -1, where));
    if (max >= 0 && min > max) return Fail(where, absl::StrCat(least, " is greater than ", most));
    return std::make_pair(min, max);
  }

  absl::StatusOr<NodeId> String(const ordered_json& schema, const Place& where) {
    ALUDEL_ASSIGN_OR_RETURN(const auto bounds, Counts(schema, "minLength", "maxLength", where));
    return json_.String(bounds.first, bounds.second, builder_.ReturnNode());
  }

  absl::StatusOr<NodeId> Array(const ordered_json& schema, const Place& where) {
    ALUDEL_ASSIGN_OR_RETURN(const auto bounds, Counts(schema, "minItems", "maxItems", where));
    Rule item = json_.any();
    if (schema.contains("items")) {
      ALUDEL_ASSIGN_OR_RETURN(item, At(schema["items"], Place{&where, "items"}));
    }
    return json_.Array(item, bounds.first, bounds.second, builder_.ReturnNode());
  }

  absl::StatusOr<NodeId> Number(const ordered_json& schema, bool fractions, const Place& where) {
    int64_t min = -JsonRules::kMaxInteger, max = JsonRules::kMaxInteger;
    bool at_min = true, at_max = true, bounded = false;
    for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const auto it = schema.find(keyword);
      if (it == schema.end()) continue;
      if (!it->is_number())
        return Fail(where, absl::StrCat(keyword, " is ", Shown(it->dump()), ", want a number"));
      bounded = true;
      const bool lower = absl::string_view(keyword).find("inimum") != absl::string_view::npos;
      const bool exclusive = keyword[0] == 'e';
      const double limit = it->get<double>();
      constexpr double kMost = static_cast<double>(JsonRules::kMaxInteger);
      const double whole = lower ? std::ceil(limit) : std::floor(limit);
      if (lower ? whole > kMost : whole < -kMost) return Fail(where, "its bounds leave no number");
      const auto bound = static_cast<int64_t>(std::clamp(whole, -kMost, kMost));
      const bool at_bound = !(exclusive && whole == limit);
      if (lower && (bound > min || (bound == min && !at_bound))) {
        min = bound;
        at_min = at_bound;
      }
      if (!lower && (bound < max || (bound == max && !at_bound))) {
        max = bound;
        at_max = at_bound;
      }
    }
    const NodeId end = builder_.ReturnNode();
    if (fractions && !bounded) return json_.Number(end);
    if (!fractions) {
      min += at_min ? 0 : 1;
      max -= at_max ? 0 : 1;
      at_min = at_max = true;
    }
    if (min > max || (min == max && !(at_min && at_max))) {
      return Fail(where, "its bounds leave no number with at most 15 digits and no exponent");
    }
    return fractions ? json_.BoundedNumber(min, max, at_min, at_max, end) : json_.Integer(min, max, end);
  }

  // "name": value
  NodeId Member(const std::string& name, Rule value, NodeId next) {
    const std::string key = ordered_json(name).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return builder_.Literal(key + ":", json_.Space(builder_.Call(value, next)));
  }

  absl::StatusOr<NodeId> Object(const ordered_json& schema, const Place& where) {
    const NodeId end = builder_.ReturnNode();
    static const auto* const kNoProperties = new ordered_json(ordered_json::object());
    static const auto* const kNoneRequired = new ordered_json(ordered_json::array());
    const auto found_properties = schema.find("properties");
    const auto found_required = schema.find("required");
    const ordered_json& properties = found_properties == schema.end() ? *kNoProperties : *found_properties;
    const ordered_json& required = found_required == schema.end() ? *kNoneRequired : *found_required;
    if (!properties.is_object()) return Fail(where, "properties is no object");
    if (!required.is_array()) return Fail(where, "required is no list");
    const auto additional = schema.find("additionalProperties");
    const bool open = additional == schema.end() ? properties.empty() : *additional != false;
    if (open && properties.empty() && required.empty() &&
        (additional == schema.end() || *additional == true)) {
      return builder_.Call(json_.any_object(), end);
    }
    Rule other = json_.any();
    if (additional != schema.end() && !additional->is_boolean()) {
      ALUDEL_ASSIGN_OR_RETURN(other, At(*additional, Place{&where, "additionalProperties"}));
    }
    std::vector<std::pair<std::string, Rule>> members;
    std::vector<std::string> names;
    const Place inside{&where, "properties"};
    // By reference into the schema, whose places are the keys of the rules.
    for (const auto& [name, property] : properties.get_ref<const ordered_json::object_t&>()) {
      ALUDEL_ASSIGN_OR_RETURN(const Rule rule, At(property, Place{&inside, name}));
      members.emplace_back(name, rule);
      names.push_back(name);
    }
    ALUDEL_RETURN_IF_ERROR(Spend(static_cast<int64_t>(required.size()), where));
    std::set<std::string> known(names.begin(), names.end());
    std::set<std::string> needed;
    for (const ordered_json& item : required) {
      if (!item.is_string()) return Fail(where, "required holds something else than strings");
      const auto& name = item.get_ref<const std::string&>();
      if (!needed.insert(name).second || !known.insert(name).second) continue;
      if (additional != schema.end() && *additional == false) {
        return Fail(
            where, absl::StrCat("requires \"", Shown(name), "\", which is no property, and allows no other"));
      }
      members.emplace_back(name, other);
      names.push_back(name);
    }
    return Members(members, needed, open ? &names : nullptr, other);
  }

  // In order, those that are not needed may be left out; then, where `except` is given, others with names
  // that are not in it.
  NodeId Members(const std::vector<std::pair<std::string, Rule>>& members,
                 const std::set<std::string>& needed, const std::vector<std::string>* except, Rule other) {
    const NodeId end = builder_.ReturnNode();
    const NodeId close = builder_.Literal("}", end);
    // What follows when a member has been written, and when none has.
    NodeId after = json_.Space(close);
    NodeId empty = close;
    if (except != nullptr) {
      const NodeId value = builder_.Literal(":", json_.Space(builder_.Call(other, end)));
      const Rule member = builder_.MakeRule(json_.StringExcept(*except, value));
      const Rule more = builder_.MakeRule(builder_.Literal(",", json_.Space(builder_.Call(member, end))));
      after = builder_.Repeat(more, 0, -1, after);
      empty = builder_.OneOf({builder_.Call(member, after), close});
    }
    for (size_t i = members.size(); i > 0; --i) {
      const auto& [name, rule] = members[i - 1];
      const bool optional = needed.count(name) == 0;
      const NodeId first = Member(name, rule, after);
      const NodeId next = builder_.Literal(",", json_.Space(first));
      after = optional ? builder_.OneOf({next, after}) : next;
      empty = optional ? builder_.OneOf({first, empty}) : first;
    }
    return builder_.Literal("{", json_.Space(empty));
  }

  const ordered_json& root_;
  StepBudget* const budget_;
  SchemaValues values_;
  GrammarBuilder builder_;
  JsonRules json_;
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

absl::StatusOr<Grammar> CompileConstraint(const TextConstraint& constraint) {
  if (const size_t bytes = constraint.json_schema.size(); bytes > kMaxSchemaBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the schema has ", bytes, " bytes, want at most ", kMaxSchemaBytes));
  }
  if (const size_t bytes = constraint.prefix.size() + constraint.suffix.size(); bytes > kMaxLiteralBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the constraint's literals have ", bytes, " bytes, want at most ", kMaxLiteralBytes));
  }
  const absl::StatusOr<ordered_json> schema = ParseOrdered(constraint.json_schema);
  if (absl::IsCancelled(schema.status())) return schema.status();
  if (!schema.ok()) return absl::InvalidArgumentError(absl::StrCat("the schema ", schema.status().message()));
  return CompileJsonSchema(*schema, constraint.prefix, constraint.suffix);
}

}  // namespace aludel
