#include "runtime/text/constrain/schema/other_members.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

bool IsText(const std::string& name) { return FirstInvalidUtf8(name) == name.size(); }

// Whether a schema allows every value.
bool AllowsAll(const ordered_json& schema) {
  if (!schema.is_object()) return schema == true;
  for (const auto& item : schema.items()) {
    if (IsConstraint(item.key())) return false;
  }
  return true;
}

}  // namespace

absl::Status OtherMembers::Read(const ordered_json& schema, const ObjectKeywords& object) {
  open_ = object.open();
  other_ = tools_.json->any();
  if (object.additional != nullptr) {
    may_name_ = *object.additional != false;
    if (!object.additional->is_boolean()) {
      ALUDEL_ASSIGN_OR_RETURN(
          other_, tools_.compile(*object.additional, SchemaPlace{&where_, "additionalProperties"}));
    }
  }
  const auto patterns = schema.find("patternProperties");
  if (patterns == schema.end()) return absl::OkStatus();
  if (!patterns->is_object()) return SchemaError(where_, "patternProperties is no object");
  if (object.additional == nullptr && !patterns->empty()) open_ = false;
  const SchemaPlace inside{&where_, "patternProperties"};
  for (const auto& [pattern, value] : patterns->get_ref<const ordered_json::object_t&>()) {
    const SchemaPlace place{&inside, pattern};
    Pattern read{.schema = &value};
    ALUDEL_ASSIGN_OR_RETURN(read.names, tools_.strings->Pattern(pattern, place));
    if (value != false) {
      ALUDEL_ASSIGN_OR_RETURN(read.value, tools_.compile(value, place));
    }
    patterns_.push_back(std::move(read));
  }
  return absl::OkStatus();
}

absl::StatusOr<Rule> OtherMembers::ValueOf(const std::string& name, const ordered_json* own,
                                           const SchemaPlace& place) {
  const ordered_json* narrow = own == nullptr || AllowsAll(*own) ? nullptr : own;
  Rule value = -1;
  bool matched = false;
  for (const Pattern& pattern : patterns_) {
    ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(1 + static_cast<int64_t>(name.size())));
    if (!IsText(name) || !pattern.names->Has(name)) continue;
    matched = true;
    if (pattern.value < 0) return -1;
    if (AllowsAll(*pattern.schema)) {
      if (value < 0) value = pattern.value;
      continue;
    }
    if (narrow != nullptr && *narrow != *pattern.schema) {
      return SchemaError(place, absl::StrCat("\"", Shown(name),
                                             "\" matches a pattern of patternProperties, too, and "
                                             "their schemas differ: one of both is supported"));
    }
    narrow = pattern.schema;
    value = pattern.value;
  }
  if (own != nullptr && (narrow == own || value < 0)) return tools_.compile(*own, place);
  if (matched) return value;
  return may_name_ ? other_ : -1;
}

absl::Status OtherMembers::AddTo(ObjectPlan* plan, const CharDfa* allowed) {
  GrammarBuilder& builder = *tools_.builder;
  const NodeId end = builder.ReturnNode();
  const auto value_of = [&](Rule rule) {
    return builder.Literal(":", tools_.json->Space(builder.Call(rule, end)));
  };
  if (patterns_.empty() && allowed == nullptr) {
    if (!open_) return absl::OkStatus();
    std::vector<std::string> names;
    for (const ObjectPlan::Member& member : plan->members) names.push_back(member.name);
    plan->others.push_back(builder.MakeRule(tools_.json->StringExcept(names, value_of(other_))));
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (const ObjectPlan::Member& member : plan->members) {
    if (IsText(member.name)) names.push_back(member.name);
  }
  ALUDEL_ASSIGN_OR_RETURN(const CharDfa listed, CharDfa::MakeList(names, tools_.budget));
  // The last round is for names of no pattern.
  for (size_t i = 0; i <= patterns_.size(); ++i) {
    const Rule rule = i < patterns_.size() ? patterns_[i].value : open_ ? other_ : -1;
    if (rule < 0) continue;
    std::vector<CharDfa::Term> terms = {{&listed, true}};
    if (allowed != nullptr) terms.push_back({allowed, false});
    for (size_t j = 0; j < patterns_.size(); ++j) {
      // Equal schemas need not be told apart.
      if (j == i || i == patterns_.size() || *patterns_[j].schema != *patterns_[i].schema) {
        terms.push_back({patterns_[j].names.get(), j != i});
      }
    }
    const absl::StatusOr<CharDfa> language = CharDfa::Intersect(terms, tools_.budget);
    if (absl::IsInvalidArgument(language.status())) {
      return SchemaError(where_,
                         absl::StrCat("the names of other members together ", language.status().message()));
    }
    if (!language.ok()) return language.status();
    if (language->empty()) continue;
    ALUDEL_ASSIGN_OR_RETURN(const NodeId name, tools_.strings->String(*language, value_of(rule)));
    plan->others.push_back(builder.MakeRule(name));
  }
  return absl::OkStatus();
}

}  // namespace aludel
