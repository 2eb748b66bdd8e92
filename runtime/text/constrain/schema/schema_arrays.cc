#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/array_rules.h"
#include "runtime/text/constrain/schema/schema_tools.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

// The keywords of one array.
struct ArrayKeywords {
  const ordered_json* prefix = nullptr;  // prefixItems; a list of one schema at least
  const ordered_json* items = nullptr;   // of the others; null: absent
  const char* prefix_name = "prefixItems";
  const char* items_name = "items";
  CountBounds bounds;
  bool unique = false;
  const ordered_json* contains = nullptr;  // null where it says nothing
  CountBounds contained;
};

const ordered_json* Find(const ordered_json& schema, const char* keyword) {
  const auto it = schema.find(keyword);
  return it == schema.end() ? nullptr : &*it;
}

absl::Status ReadContains(const ordered_json& schema, const SchemaPlace& where, ArrayKeywords* array) {
  const ordered_json* contains = Find(schema, "contains");
  if (contains == nullptr) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(array->contained, ReadCounts(schema, "minContains", "maxContains", where));
  if (!schema.contains("minContains")) array->contained.least = 1;
  const auto [least, most] = array->contained;
  if (most >= 0 && least > most) return SchemaError(where, "minContains is greater than maxContains");
  if (*contains == true || (contains->is_object() && contains->empty())) {
    // Every item is counted.
    CountBounds& bounds = array->bounds;
    bounds.least = std::max(bounds.least, least);
    if (most >= 0 && (bounds.most < 0 || most < bounds.most)) bounds.most = most;
    if (bounds.most < 0 || bounds.least <= bounds.most) return absl::OkStatus();
    return SchemaError(where, "contains asks for more items than there may be");
  }
  if (least > 0 || most >= 0) array->contains = contains;
  return absl::OkStatus();
}

absl::StatusOr<ArrayKeywords> ReadArray(const ordered_json& schema, const SchemaPlace& where) {
  ArrayKeywords array;
  ALUDEL_ASSIGN_OR_RETURN(array.bounds, ReadCounts(schema, "minItems", "maxItems", where));
  array.prefix = Find(schema, "prefixItems");
  array.items = Find(schema, "items");
  // As drafts before 2020-12 wrote it.
  if (array.prefix == nullptr && array.items != nullptr && array.items->is_array()) {
    array.prefix = std::exchange(array.items, Find(schema, "additionalItems"));
    array.prefix_name = "items";
    array.items_name = "additionalItems";
  }
  if (array.prefix != nullptr && !array.prefix->is_array()) {
    return SchemaError(where, absl::StrCat(array.prefix_name, " is no list"));
  }
  if (array.prefix != nullptr && array.prefix->empty()) array.prefix = nullptr;
  // Where there are listed items, no others are generated unless something asks for them.
  const auto listed = static_cast<int64_t>(array.prefix == nullptr ? 0 : array.prefix->size());
  const bool closed =
      array.items == nullptr ? listed > 0 && array.bounds.least <= listed : *array.items == false;
  if (closed && (array.bounds.most < 0 || array.bounds.most > listed)) array.bounds.most = listed;
  if (array.bounds.most >= 0 && array.bounds.least > array.bounds.most) {
    return SchemaError(where, "minItems asks for more items than there may be");
  }
  if (const ordered_json* unique = Find(schema, "uniqueItems")) {
    if (!unique->is_boolean()) return SchemaError(where, "uniqueItems is no boolean");
    array.unique = *unique == true && (array.bounds.most < 0 || array.bounds.most > 1);
  }
  ALUDEL_RETURN_IF_ERROR(ReadContains(schema, where, &array));
  return array;
}

class ArrayCompiler {
 public:
  ArrayCompiler(const SchemaTools& tools, const ordered_json& schema, const SchemaPlace& where)
      : tools_(tools),
        builder_(*tools.builder),
        rules_(tools.builder, tools.json, tools.budget),
        schema_(schema),
        where_(where) {}

  absl::StatusOr<NodeId> Compile() {
    ALUDEL_ASSIGN_OR_RETURN(array_, ReadArray(schema_, where_));
    if (array_.unique) return Unique();
    if (array_.contains != nullptr) return Containing();
    Rule item = tools_.json->any();
    if (array_.items != nullptr && *array_.items != false) {
      ALUDEL_ASSIGN_OR_RETURN(item, tools_.compile(*array_.items, SchemaPlace{&where_, array_.items_name}));
    }
    if (array_.prefix != nullptr) return Prefixed(item);
    return tools_.json->Array(item, array_.bounds.least, array_.bounds.most, builder_.ReturnNode());
  }

 private:
  // What the items may be, where that is a list; nothing: more than that.
  absl::StatusOr<std::optional<ValueList>> ItemValues(const ordered_json* unresolved) {
    static const auto* const kTruth = new ordered_json({true, false});
    static const auto* const kNothing = new ordered_json(nullptr);
    if (unresolved == nullptr) return std::nullopt;
    ALUDEL_ASSIGN_OR_RETURN(const ordered_json* items, tools_.values->Follow(unresolved));
    if (items == nullptr || !items->is_object()) return std::nullopt;
    ALUDEL_RETURN_IF_ERROR(CheckKeywords(*items, where_));
    if (items->contains("not")) return std::nullopt;
    auto values = ListedValues(*items);
    const TypeSet types = TypesOf(*items).value_or(kAnyType);
    if (!values && (types & ~(kBoolean | kNull)) == 0) {
      values.emplace();
      if ((types & kBoolean) != 0) values->insert(values->end(), {&(*kTruth)[0], &(*kTruth)[1]});
      if ((types & kNull) != 0) values->push_back(kNothing);
    }
    if (!values) return std::nullopt;
    absl::flat_hash_set<std::string> seen;
    ValueList distinct;
    for (const ordered_json* value : *values) {
      std::string text = CanonicalText(*value);
      ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(1 + static_cast<int64_t>(text.size() / 8)));
      if (seen.insert(std::move(text)).second) distinct.push_back(value);
    }
    return distinct;
  }

  absl::StatusOr<NodeId> Prefixed(Rule item) {
    const auto [least, most] = array_.bounds;
    const auto all = static_cast<int64_t>(array_.prefix->size());
    const bool more = most < 0 || most > all;
    const SchemaPlace inside{&where_, array_.prefix_name};
    std::vector<Rule> listed;
    for (int64_t i = 0; i < (more ? all : most); ++i) {
      ALUDEL_ASSIGN_OR_RETURN(const Rule rule,
                              tools_.compile((*array_.prefix)[i], SchemaPlace{&inside, "", i}));
      listed.push_back(rule);
    }
    return rules_.Listed(listed, more ? item : -1, least, most);
  }

  absl::StatusOr<NodeId> Unique() {
    if (array_.prefix != nullptr || array_.contains != nullptr) {
      return SchemaError(where_, "\"uniqueItems\" beside prefixItems or contains is not supported");
    }
    ALUDEL_ASSIGN_OR_RETURN(const auto values, ItemValues(array_.items));
    if (!values || values->size() > ArrayRules::kMaxUniqueValues) {
      return SchemaError(where_, absl::StrCat("\"uniqueItems\" is supported where items lists at most ",
                                              ArrayRules::kMaxUniqueValues, " values, in enum or const"));
    }
    if (static_cast<int64_t>(values->size()) < array_.bounds.least) {
      return SchemaError(where_, "minItems asks for more items than there are different ones");
    }
    std::vector<std::string> texts;
    for (const ordered_json* value : *values) texts.push_back(WriteValue(*value));
    return rules_.Unique(texts, array_.bounds.least, array_.bounds.most);
  }

  // The rules of items that are counted and of those that are not; the second may be absent.
  struct Halves {
    Rule counted = -1;
    Rule other = -1;
    bool apart = true;  // no item is both
  };
  absl::StatusOr<Halves> Split() {
    const SchemaPlace place{&where_, "contains"};
    const bool any = array_.items == nullptr || *array_.items == true;
    ALUDEL_ASSIGN_OR_RETURN(const auto wanted, ItemValues(array_.contains));
    ALUDEL_ASSIGN_OR_RETURN(const auto values, ItemValues(array_.items));
    if (values && wanted) {
      absl::flat_hash_set<std::string> texts;
      for (const ordered_json* value : *wanted) texts.insert(CanonicalText(*value));
      std::vector<std::string> counted, other;
      for (const ordered_json* value : *values) {
        (texts.contains(CanonicalText(*value)) ? counted : other).push_back(WriteValue(*value));
      }
      Halves halves;
      if (!counted.empty()) halves.counted = Literals(std::move(counted));
      if (!other.empty()) halves.other = Literals(std::move(other));
      return halves;
    }
    if (any) {
      ALUDEL_ASSIGN_OR_RETURN(const Rule counted, tools_.compile(*array_.contains, place));
      return Halves{counted, tools_.json->any(), /*apart=*/false};
    }
    // Listed values among items of which only the type is asked.
    ALUDEL_ASSIGN_OR_RETURN(const ordered_json* items, tools_.values->Follow(array_.items));
    bool only_typed = items != nullptr && items->is_object() && items->contains("type");
    if (only_typed) {
      for (const auto& item : items->items()) only_typed &= item.key() == "type" || !IsConstraint(item.key());
    }
    if (wanted && only_typed) {
      const TypeSet types = TypesOf(*items).value_or(0);
      std::vector<std::string> counted;
      for (const ordered_json* value : *wanted) {
        if ((TypeOfValue(*value) & types) != 0) counted.push_back(WriteValue(*value));
      }
      ALUDEL_ASSIGN_OR_RETURN(const Rule other,
                              tools_.compile(*array_.items, SchemaPlace{&where_, array_.items_name}));
      return Halves{counted.empty() ? -1 : Literals(std::move(counted)), other, /*apart=*/false};
    }
    return SchemaError(
        where_,
        "\"contains\" is supported where items is absent, or where contains lists values and items "
        "lists values, too, or has nothing but a type");
  }

  Rule Literals(std::vector<std::string> texts) {
    return builder_.MakeRule(builder_.OneOfLiterals(std::move(texts), builder_.ReturnNode()));
  }

  absl::StatusOr<NodeId> Containing() {
    if (array_.prefix != nullptr)
      return SchemaError(where_, "\"contains\" beside prefixItems is not supported");
    ALUDEL_ASSIGN_OR_RETURN(const Halves halves, Split());
    if (array_.contained.most >= 0 && !halves.apart) {
      return SchemaError(where_,
                         "\"maxContains\" is supported where items and contains both list their values");
    }
    ALUDEL_ASSIGN_OR_RETURN(const NodeId node, rules_.WithCounted({.counted = halves.counted,
                                                                   .other = halves.other,
                                                                   .least = array_.bounds.least,
                                                                   .most = array_.bounds.most,
                                                                   .counted_least = array_.contained.least,
                                                                   .counted_most = array_.contained.most}));
    if (node < 0) return SchemaError(where_, "its keywords leave no array");
    return node;
  }

  const SchemaTools& tools_;
  GrammarBuilder& builder_;
  ArrayRules rules_;
  const ordered_json& schema_;
  const SchemaPlace& where_;
  ArrayKeywords array_;
};

}  // namespace

absl::StatusOr<NodeId> CompileArray(const SchemaTools& tools, const ordered_json& schema,
                                    const SchemaPlace& where) {
  return ArrayCompiler(tools, schema, where).Compile();
}

}  // namespace aludel
