#include "runtime/constrain/schema_values.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxReferences = 64;

constexpr std::pair<const char*, TypeSet> kTypeNames[] = {
    {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
    {"string", kString}, {"array", kArray},     {"object", kObject}};

constexpr std::pair<const char*, TypeSet> kTypedKeywords[] = {{"properties", kObject},
                                                              {"required", kObject},
                                                              {"additionalProperties", kObject},
                                                              {"items", kArray},
                                                              {"minItems", kArray},
                                                              {"maxItems", kArray},
                                                              {"minLength", kString},
                                                              {"maxLength", kString},
                                                              {"minimum", kInteger | kFraction},
                                                              {"maximum", kInteger | kFraction},
                                                              {"exclusiveMinimum", kInteger | kFraction},
                                                              {"exclusiveMaximum", kInteger | kFraction}};

absl::StatusOr<TypeSet> TypeByName(const ordered_json& name) {
  for (const auto& [known, type] : kTypeNames) {
    if (name == known) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("type is ", name.is_string() ? name.get<std::string>() : std::string(name.type_name()),
                   ", want null, boolean, integer, number, string, array or object"));
}

const ordered_json* Follow(const ordered_json& root, const ordered_json* schema) {
  for (int i = 0; i < kMaxReferences && schema != nullptr && schema->is_object(); ++i) {
    const auto reference = schema->find("$ref");
    if (reference == schema->end() || !reference->is_string()) return schema;
    schema = ResolvePointer(root, reference->get<std::string>());
  }
  return schema;
}

// Types that any branch may have; all where it cannot be told.
TypeSet PossibleTypes(const ordered_json& root, const ordered_json& unresolved, int depth) {
  const ordered_json* schema = Follow(root, &unresolved);
  if (schema == nullptr || !schema->is_object() || depth > 8) return kAnyType;
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    const auto branches = schema->find(keyword);
    if (branches == schema->end() || !branches->is_array()) continue;
    TypeSet types = 0;
    for (const ordered_json& branch : *branches) types |= PossibleTypes(root, branch, depth + 1);
    return types;
  }
  if (const auto values = ListedValues(*schema)) {
    TypeSet types = 0;
    for (const ordered_json& value : *values) types |= TypeOfValue(value);
    return types;
  }
  return TypesOf(*schema).value_or(kAnyType);
}

bool ShareNone(const std::vector<ordered_json>& one, const std::vector<ordered_json>& other) {
  return std::none_of(one.begin(), one.end(), [&other](const ordered_json& value) {
    return std::find(other.begin(), other.end(), value) != other.end();
  });
}

bool Requires(const ordered_json& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::find(required->begin(), required->end(), name) != required->end();
}

}  // namespace

absl::StatusOr<TypeSet> TypesOf(const ordered_json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) {
    TypeSet types = 0;
    for (const auto& [keyword, implied] : kTypedKeywords) {
      if (schema.contains(keyword)) types |= implied;
    }
    return types == 0 ? kAnyType : types;
  }
  if (!type->is_array()) return TypeByName(*type);
  TypeSet types = 0;
  for (const ordered_json& name : *type) {
    ALUDEL_ASSIGN_OR_RETURN(const TypeSet one, TypeByName(name));
    types |= one;
  }
  if (types == 0) return absl::InvalidArgumentError("type is an empty list");
  return types;
}

TypeSet TypeOfValue(const ordered_json& value) {
  switch (value.type()) {
    case ordered_json::value_t::null:
      return kNull;
    case ordered_json::value_t::boolean:
      return kBoolean;
    case ordered_json::value_t::number_integer:
    case ordered_json::value_t::number_unsigned:
      return kInteger;
    case ordered_json::value_t::number_float:
      // 1.0 is an integer, too.
      return std::floor(value.get<double>()) == value.get<double>() ? kInteger : kFraction;
    case ordered_json::value_t::string:
      return kString;
    case ordered_json::value_t::array:
      return kArray;
    default:
      return kObject;
  }
}

const ordered_json* ResolvePointer(const ordered_json& root, absl::string_view reference) {
  if (reference == "#") return &root;
  if (!absl::StartsWith(reference, "#/")) return nullptr;
  const ordered_json* at = &root;
  for (absl::string_view part : absl::StrSplit(reference.substr(2), '/')) {
    const std::string key = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
    size_t index = 0;
    if (at->is_object() && at->contains(key)) {
      at = &(*at)[key];
    } else if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size()) {
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}

std::optional<std::vector<ordered_json>> ListedValues(const ordered_json& schema) {
  std::vector<ordered_json> values;
  if (const auto constant = schema.find("const"); constant != schema.end()) {
    values.push_back(*constant);
  } else if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
    values.assign(list->begin(), list->end());
  } else {
    return std::nullopt;
  }
  if (schema.contains("type")) {
    const TypeSet types = TypesOf(schema).value_or(kAnyType);
    std::erase_if(values, [types](const ordered_json& value) { return (TypeOfValue(value) & types) == 0; });
  }
  return values;
}

bool AreDisjoint(const ordered_json& root, const ordered_json& one, const ordered_json& other) {
  if ((PossibleTypes(root, one, 0) & PossibleTypes(root, other, 0)) == 0) return true;
  const ordered_json* left = Follow(root, &one);
  const ordered_json* right = Follow(root, &other);
  if (left == nullptr || right == nullptr || !left->is_object() || !right->is_object()) return false;
  const auto left_values = ListedValues(*left);
  const auto right_values = ListedValues(*right);
  if (left_values && right_values) return ShareNone(*left_values, *right_values);
  const auto left_properties = left->find("properties");
  const auto right_properties = right->find("properties");
  if (left_properties == left->end() || right_properties == right->end() || !left_properties->is_object() ||
      !right_properties->is_object() ||
      (PossibleTypes(root, one, 0) | PossibleTypes(root, other, 0)) != kObject) {
    return false;
  }
  for (const auto& [name, property] : left_properties->items()) {
    if (!right_properties->contains(name) || !Requires(*left, name) || !Requires(*right, name)) continue;
    const ordered_json* mine = Follow(root, &property);
    const ordered_json* theirs = Follow(root, &(*right_properties)[name]);
    if (mine == nullptr || theirs == nullptr || !mine->is_object() || !theirs->is_object()) continue;
    const auto mine_values = ListedValues(*mine);
    const auto their_values = ListedValues(*theirs);
    if (mine_values && their_values && ShareNone(*mine_values, *their_values)) return true;
  }
  return false;
}

}  // namespace aludel
