#include "runtime/text/constrain/schema/schema_keywords.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/multiple_rules.h"
#include "runtime/text/constrain/schema/schema_values.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Keywords that refuse values and that we do not turn into a grammar.
constexpr absl::string_view kUnsupported[] = {
    "dependentSchemas", "dependencies",          "if",          "then",          "else",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "contentSchema",
    "contentEncoding"};
// Those that we do, beside the ones that stand for a whole schema.
constexpr absl::string_view kConstraints[] = {"type",
                                              "not",
                                              "properties",
                                              "required",
                                              "additionalProperties",
                                              "items",
                                              "minItems",
                                              "maxItems",
                                              "patternProperties",
                                              "propertyNames",
                                              "prefixItems",
                                              "minProperties",
                                              "maxProperties",
                                              "dependentRequired",
                                              "additionalItems",
                                              "uniqueItems",
                                              "contains",
                                              "minContains",
                                              "maxContains",
                                              "minLength",
                                              "maxLength",
                                              "pattern",
                                              "format",
                                              "minimum",
                                              "maximum",
                                              "multipleOf",
                                              "exclusiveMinimum",
                                              "exclusiveMaximum"};
constexpr std::array<absl::string_view, 6> kWhole = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// A bound that counts something; `fallback` where it is absent.
absl::StatusOr<int64_t> Count(const ordered_json& schema, const char* keyword, int64_t fallback,
                              const SchemaPlace& where) {
  const auto it = schema.find(keyword);
  if (it == schema.end()) return fallback;
  if (!it->is_number_unsigned() || it->get<uint64_t>() > uint64_t{1} << 40) {
    return SchemaError(where, absl::StrCat(keyword, " is ", Shown(it->dump()), ", want a number of things"));
  }
  return it->get<int64_t>();
}

// Whether an unsupported keyword says nothing here, as libraries write it.
bool RefusesNothing(const std::string& key, const ordered_json& value) {
  if (key == "unevaluatedItems" || key == "unevaluatedProperties") return value == true;
  return (key == "dependentSchemas" || key == "dependencies") && value.is_object() && value.empty();
}

// Whether an object has a keyword beside properties, required and additionalProperties that refuses something. zod's
// records have a propertyNames of strings.
bool SaysMore(const ordered_json& schema) {
  static const ordered_json kStrings = {{"type", "string"}};
  for (const auto& [key, value] : schema.items()) {
    if (key == "maxProperties" || (key == "minProperties" && value != 0)) return true;
    if (key == "patternProperties" && !(value.is_object() && value.empty())) return true;
    if (key == "propertyNames" && value != true && value != kStrings &&
        !(value.is_object() && value.empty())) {
      return true;
    }
    if (key == "dependentRequired" &&
        !(value.is_object() && absl::c_all_of(value, [](const ordered_json& names) {
            return names.is_array() && names.empty();
          }))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string SchemaPlace::Text() const {
  std::vector<std::string> parts;
  for (const SchemaPlace* at = this; at != nullptr; at = at->above) {
    parts.push_back(at->index < 0 ? Shown(at->name) : absl::StrCat(at->index));
  }
  std::reverse(parts.begin(), parts.end());
  return absl::StrJoin(parts, "/");
}

absl::Status SchemaError(const SchemaPlace& where, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(where.Text(), ": ", message));
}

bool IsConstraint(absl::string_view keyword) {
  return absl::c_linear_search(kConstraints, keyword) || absl::c_linear_search(kWhole, keyword) ||
         absl::c_linear_search(kUnsupported, keyword);
}

absl::Status CheckKeywords(const ordered_json& schema, const SchemaPlace& where) {
  absl::string_view whole;
  for (const auto& [key, value] : schema.items()) {
    if (absl::c_linear_search(kUnsupported, key) && !RefusesNothing(key, value)) {
      return SchemaError(where, absl::StrCat("keyword \"", key, "\" is not supported"));
    }
    if (!absl::c_linear_search(kWhole, key)) continue;
    if (!whole.empty())
      return SchemaError(where, absl::StrCat("\"", key, "\" beside \"", whole, "\" is not supported"));
    whole = *absl::c_find(kWhole, key);
  }
  if (whole.empty()) return absl::OkStatus();
  for (const auto& [key, value] : schema.items()) {
    // These two beside a list of values pick from them.
    if ((key == "type" || key == "not") && (whole == "const" || whole == "enum")) continue;
    if (absl::c_linear_search(kConstraints, key)) {
      return SchemaError(where, absl::StrCat("\"", key, "\" beside \"", whole, "\" is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CountBounds> ReadCounts(const ordered_json& schema, const char* least, const char* most,
                                       const SchemaPlace& where) {
  CountBounds bounds;
  ALUDEL_ASSIGN_OR_RETURN(bounds.least, Count(schema, least, 0, where));
  ALUDEL_ASSIGN_OR_RETURN(bounds.most, Count(schema, most, -1, where));
  if (bounds.most < 0 || bounds.least <= bounds.most) return bounds;
  return SchemaError(where, absl::StrCat(least, " is greater than ", most));
}

absl::StatusOr<NumberBounds> ReadNumberBounds(const ordered_json& schema, bool fractions,
                                              const SchemaPlace& where) {
  int64_t min = -JsonRules::kMaxInteger, max = JsonRules::kMaxInteger;
  bool at_min = true, at_max = true, given = false;
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) continue;
    if (!it->is_number())
      return SchemaError(where, absl::StrCat(keyword, " is ", Shown(it->dump()), ", want a number"));
    given = true;
    const bool lower = absl::string_view(keyword).find("inimum") != absl::string_view::npos;
    const bool exclusive = keyword[0] == 'e';
    const double limit = it->get<double>();
    constexpr double kMost = static_cast<double>(JsonRules::kMaxInteger);
    const double whole = lower ? std::ceil(limit) : std::floor(limit);
    if (lower ? whole > kMost : whole < -kMost) return SchemaError(where, "its bounds leave no number");
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
  if (!fractions) {
    min += at_min ? 0 : 1;
    max -= at_max ? 0 : 1;
    at_min = at_max = true;
  }
  if (min > max || (min == max && !(at_min && at_max))) {
    return SchemaError(where, "its bounds leave no number with at most 15 digits and no exponent");
  }
  return NumberBounds{min, max, at_min, at_max, given};
}

absl::StatusOr<int64_t> ReadDivisor(const ordered_json& schema, const SchemaPlace& where) {
  const auto it = schema.find("multipleOf");
  if (it == schema.end()) return 1;
  const double value = it->is_number() ? it->get<double>() : 0;
  if (value >= 1 && value <= static_cast<double>(JsonRules::kMaxInteger) && std::floor(value) == value &&
      MultipleRules::CanDivideBy(static_cast<int64_t>(value))) {
    return static_cast<int64_t>(value);
  }
  return SchemaError(where,
                     absl::StrCat("multipleOf is ", Shown(it->dump()), ", want a whole number of at most ",
                                  MultipleRules::kMaxDivisor, ", zeros at its end not counted"));
}

bool ObjectKeywords::open() const {
  return additional == nullptr ? properties.empty() : *additional != false;
}

bool ObjectKeywords::any() const {
  return !more && properties.empty() && required.empty() && (additional == nullptr || *additional == true);
}

absl::StatusOr<ObjectKeywords> ReadObject(const ordered_json& schema, const SchemaPlace& where) {
  static const auto* const kNoProperties = new ordered_json(ordered_json::object());
  static const auto* const kNoneRequired = new ordered_json(ordered_json::array());
  const auto properties = schema.find("properties");
  const auto required = schema.find("required");
  const auto additional = schema.find("additionalProperties");
  const ObjectKeywords found{.properties = properties == schema.end() ? *kNoProperties : *properties,
                             .required = required == schema.end() ? *kNoneRequired : *required,
                             .additional = additional == schema.end() ? nullptr : &*additional,
                             .more = SaysMore(schema)};
  if (!found.properties.is_object()) return SchemaError(where, "properties is no object");
  if (!found.required.is_array()) return SchemaError(where, "required is no list");
  return found;
}

}  // namespace aludel
