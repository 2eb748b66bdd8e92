#include "runtime/text/constrain/schema/schema_strings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/regex/regex_tree.h"
#include "runtime/text/constrain/regex/string_formats.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {

using nlohmann::ordered_json;

absl::StatusOr<SchemaStrings::Dfa> SchemaStrings::Pattern(absl::string_view pattern,
                                                          const SchemaPlace& where) {
  const auto [known, added] = patterns_.try_emplace(std::string(pattern), nullptr);
  if (!added) return known->second;
  const auto make = [&]() -> absl::StatusOr<CharDfa> {
    ALUDEL_ASSIGN_OR_RETURN(const RegexTree tree, ParseRegex(pattern, budget_));
    return CharDfa::Make(tree, CharDfa::Match::kAnywhere, budget_);
  };
  absl::StatusOr<CharDfa> dfa = make();
  if (absl::IsInvalidArgument(dfa.status())) {
    return SchemaError(where, absl::StrCat("the pattern ", dfa.status().message()));
  }
  if (!dfa.ok()) return dfa.status();
  return known->second = std::make_shared<const CharDfa>(*std::move(dfa));
}

absl::StatusOr<SchemaStrings::Dfa> SchemaStrings::LanguageOf(const ordered_json& schema,
                                                             const Exclusions& refused,
                                                             const SchemaPlace& where) {
  std::vector<Dfa> held;
  std::vector<CharDfa::Term> terms;
  const auto add = [&](Dfa dfa, bool negated) {
    terms.push_back({dfa.get(), negated});
    held.push_back(std::move(dfa));
  };
  if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
    const SchemaPlace place{&where, "pattern"};
    if (!pattern->is_string()) return SchemaError(place, "is no string");
    ALUDEL_ASSIGN_OR_RETURN(Dfa dfa, Pattern(pattern->get_ref<const std::string&>(), place));
    add(std::move(dfa), false);
  }
  if (const auto format = schema.find("format"); format != schema.end() && format->is_string()) {
    if (const absl::string_view pattern = FormatPattern(format->get_ref<const std::string&>());
        !pattern.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(Dfa dfa, Pattern(pattern, SchemaPlace{&where, "format"}));
      add(std::move(dfa), false);
    }
  }
  for (const ordered_json* pattern : refused.patterns) {
    ALUDEL_ASSIGN_OR_RETURN(
        Dfa dfa, Pattern(pattern->get_ref<const std::string&>(), SchemaPlace{&where, "not/pattern"}));
    add(std::move(dfa), true);
  }
  if (const ValueList values = refused.ValuesOf(kString); !values.empty()) {
    std::vector<std::string> texts;
    for (const ordered_json* value : values) {
      const auto& text = value->get_ref<const std::string&>();
      if (FirstInvalidUtf8(text) == text.size()) texts.push_back(text);
    }
    ALUDEL_ASSIGN_OR_RETURN(CharDfa dfa, CharDfa::MakeList(texts, budget_));
    add(std::make_shared<const CharDfa>(std::move(dfa)), true);
  }
  if (terms.empty()) return nullptr;
  ALUDEL_ASSIGN_OR_RETURN(const CountBounds bounds, ReadCounts(schema, "minLength", "maxLength", where));
  if (bounds.least > 0 || bounds.most >= 0) {
    absl::StatusOr<CharDfa> dfa = CharDfa::MakeLengths(bounds.least, bounds.most, budget_);
    if (absl::IsInvalidArgument(dfa.status())) {
      return SchemaError(where, absl::StrCat("the length beside a pattern ", dfa.status().message()));
    }
    if (!dfa.ok()) return dfa.status();
    add(std::make_shared<const CharDfa>(*std::move(dfa)), false);
  }
  Dfa language = held.front();
  if (terms.size() > 1 || terms.front().negated) {
    absl::StatusOr<CharDfa> dfa = CharDfa::Intersect(terms, budget_);
    if (absl::IsInvalidArgument(dfa.status())) {
      return SchemaError(where, absl::StrCat("what its keywords together allow ", dfa.status().message()));
    }
    if (!dfa.ok()) return dfa.status();
    language = std::make_shared<const CharDfa>(*std::move(dfa));
  }
  if (language->empty()) return SchemaError(where, "its keywords leave no string");
  return language;
}

absl::StatusOr<bool> SchemaStrings::Allows(const Exclusions& refused, const ordered_json& value,
                                           const SchemaPlace& where) {
  if ((TypeOfValue(value) & refused.types) != 0) return false;
  if (!refused.texts.empty() && refused.texts.contains(CanonicalText(value))) return false;
  for (const ordered_json* pattern : refused.patterns) {
    if (!value.is_string()) break;
    const auto& string = value.get_ref<const std::string&>();
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1 + static_cast<int64_t>(string.size())));
    ALUDEL_ASSIGN_OR_RETURN(
        const Dfa dfa, Pattern(pattern->get_ref<const std::string&>(), SchemaPlace{&where, "not/pattern"}));
    if (FirstInvalidUtf8(string) != string.size() || dfa->Has(string)) return false;
  }
  for (const ordered_json* names : refused.required) {
    const auto there = [&value](const ordered_json& name) {
      return name.is_string() && value.contains(name.get_ref<const std::string&>());
    };
    if (value.is_object() && std::all_of(names->begin(), names->end(), there)) return false;
  }
  return true;
}

absl::StatusOr<SchemaStrings::NodeId> SchemaStrings::String(const CharDfa& language, NodeId next) {
  ALUDEL_ASSIGN_OR_RETURN(const NodeId text,
                          characters_->Text(language, CharacterRules::Writing::kJson, json_->Quote(next)));
  return json_->Quote(text);
}

absl::StatusOr<SchemaStrings::NodeId> SchemaStrings::String(const ordered_json& schema,
                                                            const Exclusions& refused,
                                                            const SchemaPlace& where, NodeId next) {
  ALUDEL_ASSIGN_OR_RETURN(const Dfa language, LanguageOf(schema, refused, where));
  if (language != nullptr) return String(*language, next);
  ALUDEL_ASSIGN_OR_RETURN(const CountBounds bounds, ReadCounts(schema, "minLength", "maxLength", where));
  return json_->String(bounds.least, bounds.most, next);
}

}  // namespace aludel
