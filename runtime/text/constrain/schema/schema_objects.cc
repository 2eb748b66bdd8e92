#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/object_rules.h"
#include "runtime/text/constrain/schema/other_members.h"
#include "runtime/text/constrain/schema/schema_tools.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;
using Dfa = std::shared_ptr<const CharDfa>;

class ObjectCompiler {
 public:
  ObjectCompiler(const SchemaTools& tools, const ordered_json& schema, const Exclusions& refused,
                 const SchemaPlace& where)
      : tools_(tools),
        builder_(*tools.builder),
        schema_(schema),
        refused_(refused),
        where_(where),
        others_(&tools, &where) {}

  absl::StatusOr<NodeId> Compile() {
    ALUDEL_ASSIGN_OR_RETURN(const ObjectKeywords object, ReadObject(schema_, where_));
    if (object.any() && refused_.required.empty())
      return builder_.Call(tools_.json->any_object(), builder_.ReturnNode());
    ALUDEL_ASSIGN_OR_RETURN(const CountBounds counts,
                            ReadCounts(schema_, "minProperties", "maxProperties", where_));
    plan_.min = counts.least;
    plan_.max = counts.most;
    ALUDEL_RETURN_IF_ERROR(others_.Read(schema_, object));
    ALUDEL_RETURN_IF_ERROR(ReadMembers(object));
    ALUDEL_RETURN_IF_ERROR(ReadNames());
    ALUDEL_RETURN_IF_ERROR(ReadDependencies());
    ALUDEL_RETURN_IF_ERROR(ReadRefused());
    ALUDEL_RETURN_IF_ERROR(CheckNames());
    ALUDEL_RETURN_IF_ERROR(others_.AddTo(&plan_, names_.get()));
    ALUDEL_ASSIGN_OR_RETURN(const NodeId node,
                            MakeObject(plan_, &builder_, *tools_.json, tools_.budget, builder_.ReturnNode()));
    if (node >= 0) return node;
    return SchemaError(where_, plan_.min > 1
                                   ? "its keywords leave no object; of members that are not listed, whose "
                                     "names may repeat, only one counts for minProperties"
                                   : "its keywords leave no object");
  }

 private:
  static bool IsText(const std::string& name) { return FirstInvalidUtf8(name) == name.size(); }

  absl::Status AddMember(const std::string& name, Rule value, bool needed) {
    member_ids_.emplace(name, plan_.members.size());
    plan_.members.push_back({.name = name, .value = value, .needed = needed, .allowed = value >= 0});
    if (value >= 0 || !needed) return absl::OkStatus();
    return SchemaError(where_, absl::StrCat("requires \"", Shown(name), "\", which another keyword refuses"));
  }

  // A member that a keyword names, whether properties have it or not.
  absl::StatusOr<size_t> MemberFor(const std::string& name) {
    if (const auto known = member_ids_.find(name); known != member_ids_.end()) return known->second;
    ALUDEL_ASSIGN_OR_RETURN(const Rule value, others_.ValueOf(name, nullptr, where_));
    ALUDEL_RETURN_IF_ERROR(AddMember(name, value, /*needed=*/false));
    return plan_.members.size() - 1;
  }

  absl::Status ReadMembers(const ObjectKeywords& object) {
    ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(static_cast<int64_t>(object.required.size())));
    std::set<std::string> needed;
    for (const ordered_json& item : object.required) {
      if (!item.is_string()) return SchemaError(where_, "required holds something else than strings");
      needed.insert(item.get_ref<const std::string&>());
    }
    const SchemaPlace inside{&where_, "properties"};
    // By reference into the schema, whose places are the keys of the rules.
    for (const auto& [name, property] : object.properties.get_ref<const ordered_json::object_t&>()) {
      Rule value = -1;
      if (property != false) {
        ALUDEL_ASSIGN_OR_RETURN(value, others_.ValueOf(name, &property, SchemaPlace{&inside, name}));
      }
      ALUDEL_RETURN_IF_ERROR(AddMember(name, value, needed.count(name) > 0));
    }
    for (const ordered_json& item : object.required) {
      const auto& name = item.get_ref<const std::string&>();
      if (member_ids_.contains(name)) continue;
      ALUDEL_ASSIGN_OR_RETURN(const size_t member, MemberFor(name));
      if (!plan_.members[member].allowed) {
        return SchemaError(where_, absl::StrCat("requires \"", Shown(name),
                                                "\", which is no property, and allows no other"));
      }
      plan_.members[member].needed = true;
    }
    return absl::OkStatus();
  }

  absl::Status ReadNames() {
    const auto keyword = schema_.find("propertyNames");
    if (keyword == schema_.end() || *keyword == true) return absl::OkStatus();
    const SchemaPlace place{&where_, "propertyNames"};
    ALUDEL_ASSIGN_OR_RETURN(const ordered_json* names, tools_.values->Follow(&*keyword));
    if (names == nullptr || !names->is_object()) return SchemaError(place, "want a schema of names");
    ALUDEL_RETURN_IF_ERROR(CheckKeywords(*names, place));
    if (const absl::StatusOr<TypeSet> types = TypesOf(*names); !types.ok() || (*types & kString) == 0) {
      return SchemaError(place, "allows no string");
    }
    for (const char* branches : {"anyOf", "oneOf", "allOf"}) {
      if (names->contains(branches))
        return SchemaError(place, absl::StrCat("\"", branches, "\" is not supported here"));
    }
    ALUDEL_ASSIGN_OR_RETURN(const Exclusions refused, ReadExclusions(*names, place));
    if (const auto values = ListedValues(*names)) {
      if (!refused.empty()) return SchemaError(place, "\"not\" beside listed names is not supported");
      std::vector<std::string> texts;
      for (const ordered_json* value : *values) {
        if (!value->is_string()) continue;
        const auto& name = value->get_ref<const std::string&>();
        if (IsText(name)) texts.push_back(name);
        // Listed names are members in their order, as if properties had them.
        if (others_.open()) ALUDEL_RETURN_IF_ERROR(MemberFor(name).status());
      }
      ALUDEL_ASSIGN_OR_RETURN(CharDfa list, CharDfa::MakeList(texts, tools_.budget));
      names_ = std::make_shared<const CharDfa>(std::move(list));
      others_.Close();
    } else {
      ALUDEL_ASSIGN_OR_RETURN(names_, tools_.strings->LanguageOf(*names, refused, place));
      if (names_ == nullptr && (names->contains("minLength") || names->contains("maxLength"))) {
        ALUDEL_ASSIGN_OR_RETURN(const CountBounds bounds,
                                ReadCounts(*names, "minLength", "maxLength", place));
        ALUDEL_ASSIGN_OR_RETURN(CharDfa lengths,
                                CharDfa::MakeLengths(bounds.least, bounds.most, tools_.budget));
        names_ = std::make_shared<const CharDfa>(std::move(lengths));
      }
    }
    return absl::OkStatus();
  }

  // When all members are known.
  absl::Status CheckNames() {
    const SchemaPlace place{&where_, "propertyNames"};
    if (names_ == nullptr) return absl::OkStatus();
    for (ObjectPlan::Member& member : plan_.members) {
      ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(1 + static_cast<int64_t>(member.name.size())));
      if (IsText(member.name) && names_->Has(member.name)) continue;
      member.allowed = false;
      if (member.needed) {
        return SchemaError(place, absl::StrCat("refuses \"", Shown(member.name), "\", which is required"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddClause(std::vector<ObjectPlan::Literal> clause, const SchemaPlace& where) {
    ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(4 * static_cast<int64_t>(clause.size())));
    if (plan_.clauses.size() == ObjectPlan::kMaxClauses) {
      return SchemaError(where, absl::StrCat("more than ", ObjectPlan::kMaxClauses,
                                             " dependencies between members are not supported"));
    }
    plan_.clauses.push_back(std::move(clause));
    return absl::OkStatus();
  }

  absl::Status ReadDependencies() {
    const auto keyword = schema_.find("dependentRequired");
    if (keyword == schema_.end()) return absl::OkStatus();
    const SchemaPlace place{&where_, "dependentRequired"};
    if (!keyword->is_object()) return SchemaError(place, "is no object");
    for (const auto& [name, needed] : keyword->get_ref<const ordered_json::object_t&>()) {
      if (!needed.is_array()) return SchemaError(place, "holds something else than lists of names");
      if (needed.empty()) continue;
      ALUDEL_ASSIGN_OR_RETURN(const size_t trigger, MemberFor(name));
      for (const ordered_json& item : needed) {
        if (!item.is_string()) return SchemaError(place, "holds something else than lists of names");
        ALUDEL_ASSIGN_OR_RETURN(const size_t member, MemberFor(item.get_ref<const std::string&>()));
        ALUDEL_RETURN_IF_ERROR(AddClause({{trigger, false}, {member, true}}, place));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadRefused() {
    const SchemaPlace place{&where_, "not/required"};
    for (const ordered_json* list : refused_.required) {
      std::vector<ObjectPlan::Literal> clause;
      for (const ordered_json& item : *list) {
        if (!item.is_string()) return SchemaError(place, "holds something else than strings");
        ALUDEL_ASSIGN_OR_RETURN(const size_t member, MemberFor(item.get_ref<const std::string&>()));
        clause.push_back({member, false});
      }
      if (clause.empty()) return SchemaError(place, "\"not\" of an empty list allows no object");
      ALUDEL_RETURN_IF_ERROR(AddClause(std::move(clause), place));
    }
    return absl::OkStatus();
  }

  const SchemaTools& tools_;
  GrammarBuilder& builder_;
  const ordered_json& schema_;
  const Exclusions& refused_;
  const SchemaPlace& where_;
  OtherMembers others_;
  Dfa names_;  // null: all
  ObjectPlan plan_;
  absl::flat_hash_map<std::string, size_t> member_ids_;
};

}  // namespace

absl::StatusOr<NodeId> CompileObject(const SchemaTools& tools, const ordered_json& schema,
                                     const Exclusions& refused, const SchemaPlace& where) {
  return ObjectCompiler(tools, schema, refused, where).Compile();
}

}  // namespace aludel
