#include "runtime/text/constrain/schema/schema_values.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/regex/string_formats.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxReferences = 64;
constexpr int64_t kStepsPerPair = 4;
constexpr int kMaxBranchDepth = 256;                   // as deep as a schema is compiled
constexpr double kExactIntegers = 9007199254740992.0;  // doubles below are exact integers where they are some

constexpr std::pair<const char*, TypeSet> kTypeNames[] = {
    {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
    {"string", kString}, {"array", kArray},     {"object", kObject}};

constexpr std::pair<const char*, TypeSet> kTypedKeywords[] = {{"properties", kObject},
                                                              {"required", kObject},
                                                              {"additionalProperties", kObject},
                                                              {"patternProperties", kObject},
                                                              {"propertyNames", kObject},
                                                              {"minProperties", kObject},
                                                              {"maxProperties", kObject},
                                                              {"dependentRequired", kObject},
                                                              {"items", kArray},
                                                              {"prefixItems", kArray},
                                                              {"uniqueItems", kArray},
                                                              {"contains", kArray},
                                                              {"minItems", kArray},
                                                              {"maxItems", kArray},
                                                              {"minLength", kString},
                                                              {"maxLength", kString},
                                                              {"pattern", kString},
                                                              {"multipleOf", kInteger | kFraction},
                                                              {"minimum", kInteger | kFraction},
                                                              {"maximum", kInteger | kFraction},
                                                              {"exclusiveMinimum", kInteger | kFraction},
                                                              {"exclusiveMaximum", kInteger | kFraction}};

absl::StatusOr<TypeSet> TypeByName(const ordered_json& name) {
  for (const auto& [known, type] : kTypeNames) {
    if (name == known) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "type is ",
      name.is_string() ? Shown(name.get_ref<const std::string&>()) : std::string(name.type_name()),
      ", want null, boolean, integer, number, string, array or object"));
}

// Values nest as deep as their schema, which is bounded.
void AppendCanonical(const ordered_json& value, std::string* text) {
  if (value.is_object()) {
    std::vector<const ordered_json::object_t::value_type*> members;
    for (const auto& member : value.get_ref<const ordered_json::object_t&>()) members.push_back(&member);
    std::sort(members.begin(), members.end(),
              [](const auto* a, const auto* b) { return a->first < b->first; });
    text->push_back('{');
    for (const auto* member : members) {
      absl::StrAppend(text, member->first.size(), ":", member->first);
      AppendCanonical(member->second, text);
    }
    text->push_back('}');
  } else if (value.is_array()) {
    text->push_back('[');
    for (const ordered_json& item : value) AppendCanonical(item, text);
    text->push_back(']');
  } else if (value.is_string()) {
    const auto& string = value.get_ref<const std::string&>();
    absl::StrAppend(text, "\"", string.size(), ":", string);
  } else if (value.is_number_float() && TypeOfValue(value) == kInteger &&
             std::abs(value.get<double>()) < kExactIntegers) {
    absl::StrAppend(text, value.get<int64_t>(), ",");
  } else {
    absl::StrAppend(text, value.dump(), ",");
  }
}

int64_t CountSteps(const ordered_json& value) {
  if (value.is_string()) return 1 + static_cast<int64_t>(value.get_ref<const std::string&>().size() / 8);
  int64_t steps = 1;
  if (value.is_structured()) {
    for (const ordered_json& item : value) steps += CountSteps(item);
  }
  return steps;
}

}  // namespace

absl::StatusOr<TypeSet> TypesOf(const ordered_json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) {
    TypeSet types = 0;
    for (const auto& [keyword, implied] : kTypedKeywords) {
      if (schema.contains(keyword)) types |= implied;
    }
    if (const auto format = schema.find("format"); format != schema.end() && format->is_string()) {
      if (!FormatPattern(format->get_ref<const std::string&>()).empty()) types |= kString;
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

std::optional<ValueList> ListedValues(const ordered_json& schema) {
  ValueList values;
  if (const auto constant = schema.find("const"); constant != schema.end()) {
    values.push_back(&*constant);
  } else if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
    for (const ordered_json& value : *list) values.push_back(&value);
  } else {
    return std::nullopt;
  }
  if (schema.contains("type")) {
    const TypeSet types = TypesOf(schema).value_or(kAnyType);
    std::erase_if(values, [types](const ordered_json* value) { return (TypeOfValue(*value) & types) == 0; });
  }
  return values;
}

std::string CanonicalText(const ordered_json& value) {
  std::string text;
  AppendCanonical(value, &text);
  return text;
}

std::string Shown(absl::string_view text) {
  constexpr size_t kShownBytes = 128;
  return text.size() <= kShownBytes ? std::string(text) : absl::StrCat(text.substr(0, kShownBytes), "...");
}

absl::StatusOr<const ordered_json*> SchemaValues::Resolve(const std::string& reference) {
  const auto [known, added] = resolved_.try_emplace(reference, nullptr);
  if (!added) return known->second;
  if (reference == "#") return known->second = root_;
  if (!absl::StartsWith(reference, "#/")) return nullptr;
  const ordered_json* at = root_;
  for (absl::string_view part : absl::StrSplit(absl::string_view(reference).substr(2), '/')) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1 + static_cast<int64_t>(at->size() / 4)));
    const std::string key = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
    size_t index = 0;
    if (at->is_object()) {
      const auto member = at->find(key);
      if (member == at->end()) return nullptr;
      at = &*member;
    } else if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size()) {
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return known->second = at;
}

absl::StatusOr<const ordered_json*> SchemaValues::Follow(const ordered_json* schema) {
  for (int i = 0; i < kMaxReferences && schema != nullptr && schema->is_object(); ++i) {
    const auto reference = schema->find("$ref");
    if (reference == schema->end() || !reference->is_string()) return schema;
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
    ALUDEL_ASSIGN_OR_RETURN(schema, Resolve(reference->get_ref<const std::string&>()));
  }
  return schema;
}

absl::StatusOr<TypeSet> SchemaValues::PossibleTypes(const ordered_json& unresolved, int depth) {
  ALUDEL_ASSIGN_OR_RETURN(const ordered_json* schema, Follow(&unresolved));
  if (schema == nullptr || !schema->is_object() || depth > kMaxBranchDepth) return kAnyType;
  // A place that is reached again while it is looked at may be anything.
  const auto [known, added] = types_.try_emplace(schema, kAnyType);
  if (!added) return known->second;
  TypeSet types = 0;
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    const auto branches = schema->find(keyword);
    if (branches == schema->end() || !branches->is_array()) continue;
    for (const ordered_json& branch : *branches) {
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
      ALUDEL_ASSIGN_OR_RETURN(const TypeSet one, PossibleTypes(branch, depth + 1));
      types |= one;
    }
    return types_[schema] = types;
  }
  if (const auto values = ListedValues(*schema)) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(static_cast<int64_t>(values->size())));
    for (const ordered_json* value : *values) types |= TypeOfValue(*value);
  } else {
    types = TypesOf(*schema).value_or(kAnyType);
  }
  return types_[schema] = types;
}

absl::StatusOr<SchemaValues::ValueIds> SchemaValues::Number(const ValueList& values) {
  ValueIds ids;
  for (const ordered_json* value : values) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(CountSteps(*value)));
    ids.push_back(
        numbers_.try_emplace(CanonicalText(*value), static_cast<int32_t>(numbers_.size())).first->second);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::StatusOr<const SchemaValues::Facts*> SchemaValues::FactsOf(const ordered_json& schema) {
  ALUDEL_ASSIGN_OR_RETURN(const ordered_json* place, Follow(&schema));
  if (place == nullptr) place = &schema;
  if (const auto known = facts_.find(place); known != facts_.end()) return known->second.get();
  Facts facts;
  ALUDEL_ASSIGN_OR_RETURN(facts.types, PossibleTypes(*place, 0));
  if (place->is_object()) {
    if (const auto values = ListedValues(*place)) {
      ALUDEL_ASSIGN_OR_RETURN(facts.values, Number(*values));
    }
    const auto properties = place->find("properties");
    const auto required = place->find("required");
    if (properties != place->end() && properties->is_object() && required != place->end() &&
        required->is_array()) {
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(static_cast<int64_t>(required->size())));
      absl::flat_hash_set<absl::string_view> names;
      for (const ordered_json& name : *required) {
        if (name.is_string()) names.insert(name.get_ref<const std::string&>());
      }
      for (const auto& [name, property] : properties->get_ref<const ordered_json::object_t&>()) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
        if (!names.contains(name)) continue;
        ALUDEL_ASSIGN_OR_RETURN(const ordered_json* tag, Follow(&property));
        if (tag == nullptr || !tag->is_object()) continue;
        const auto values = ListedValues(*tag);
        if (!values) continue;
        ALUDEL_ASSIGN_OR_RETURN(ValueIds ids, Number(*values));
        facts.tags.emplace_back(name, std::move(ids));
      }
      std::sort(facts.tags.begin(), facts.tags.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    }
  }
  return (facts_[place] = std::make_unique<const Facts>(std::move(facts))).get();
}

absl::StatusOr<bool> SchemaValues::ShareNone(const ValueIds& one, const ValueIds& other) {
  ALUDEL_RETURN_IF_ERROR(budget_->Spend(1 + static_cast<int64_t>(one.size() + other.size()) / 4));
  for (auto a = one.begin(), b = other.begin(); a != one.end() && b != other.end();) {
    if (*a == *b) return false;
    *a < *b ? ++a : ++b;
  }
  return true;
}

absl::StatusOr<bool> SchemaValues::AreDisjoint(const ordered_json& one, const ordered_json& other) {
  ALUDEL_ASSIGN_OR_RETURN(const Facts* left, FactsOf(one));
  ALUDEL_ASSIGN_OR_RETURN(const Facts* right, FactsOf(other));
  ALUDEL_RETURN_IF_ERROR(budget_->Spend(kStepsPerPair));
  if ((left->types & right->types) == 0) return true;
  if (left->values && right->values) return ShareNone(*left->values, *right->values);
  if ((left->types | right->types) != kObject) return false;
  ALUDEL_RETURN_IF_ERROR(budget_->Spend(static_cast<int64_t>(left->tags.size() + right->tags.size())));
  for (auto a = left->tags.begin(), b = right->tags.begin();
       a != left->tags.end() && b != right->tags.end();) {
    if (a->first == b->first) {
      ALUDEL_ASSIGN_OR_RETURN(const bool disjoint, ShareNone(a->second, b->second));
      if (disjoint) return true;
      ++a;
      ++b;
    } else {
      a->first < b->first ? ++a : ++b;
    }
  }
  return false;
}

}  // namespace aludel
