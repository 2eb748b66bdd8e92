#include "runtime/text/constrain/schema/schema_exclusions.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

absl::Status Read(const ordered_json& refused, const SchemaPlace& where, Exclusions* exclusions) {
  if (refused == false) return absl::OkStatus();
  if (refused == true) return SchemaError(where, "\"not\" of true allows no value");
  if (!refused.is_object()) return SchemaError(where, "want a schema");
  std::set<std::string> keywords;
  for (const auto& item : refused.items()) {
    if (IsConstraint(item.key())) keywords.insert(item.key());
  }
  if (keywords.empty()) return SchemaError(where, "\"not\" of a schema that allows every value allows none");
  if (keywords == std::set<std::string>{"anyOf"} && refused["anyOf"].is_array()) {
    const SchemaPlace list{&where, "anyOf"};
    for (size_t i = 0; i < refused["anyOf"].size(); ++i) {
      ALUDEL_RETURN_IF_ERROR(
          Read(refused["anyOf"][i], SchemaPlace{&list, "", static_cast<int64_t>(i)}, exclusions));
    }
    return absl::OkStatus();
  }
  TypeSet types = kAnyType;
  const bool typed = keywords.erase("type") > 0;
  if (typed) {
    const absl::StatusOr<TypeSet> read = TypesOf(refused);
    if (!read.ok()) return SchemaError(where, read.status().message());
    types = *read;
  }
  if (keywords.empty()) {
    exclusions->types |= types;
    return absl::OkStatus();
  }
  const std::string keyword = *keywords.begin();
  if (keywords.size() == 1 && (keyword == "const" || (keyword == "enum" && refused["enum"].is_array()))) {
    const auto values = ListedValues(refused);
    for (const ordered_json* value : *values) {
      exclusions->values.push_back(value);
      exclusions->texts.insert(CanonicalText(*value));
    }
    return absl::OkStatus();
  }
  // These two match every value of another type.
  const auto only = [&](TypeSet type) {
    if (!typed) exclusions->types |= kAnyType & ~type;
    return !typed || types == type;
  };
  if (keywords.size() == 1 && keyword == "pattern" && refused["pattern"].is_string() && only(kString)) {
    exclusions->patterns.push_back(&refused["pattern"]);
    return absl::OkStatus();
  }
  if (keywords.size() == 1 && keyword == "required" && refused["required"].is_array() && only(kObject)) {
    exclusions->required.push_back(&refused["required"]);
    return absl::OkStatus();
  }
  return SchemaError(where,
                     "\"not\" is supported with type, const, enum, pattern, required, or anyOf of these");
}

}  // namespace

ValueList Exclusions::ValuesOf(TypeSet types) const {
  ValueList found;
  for (const ordered_json* value : values) {
    if ((TypeOfValue(*value) & types) != 0) found.push_back(value);
  }
  return found;
}

absl::StatusOr<Exclusions> ReadExclusions(const ordered_json& schema, const SchemaPlace& where) {
  Exclusions exclusions;
  if (const auto refused = schema.find("not"); refused != schema.end()) {
    ALUDEL_RETURN_IF_ERROR(Read(*refused, SchemaPlace{&where, "not"}, &exclusions));
  }
  return exclusions;
}

}  // namespace aludel
