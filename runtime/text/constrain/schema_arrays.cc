#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/schema_tools.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

constexpr size_t kMaxUniqueValues = 64;

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

class ArrayCompiler {
 public:
  ArrayCompiler(const SchemaTools& tools, const ordered_json& schema, const SchemaPlace& where)
      : tools_(tools), builder_(*tools.builder), schema_(schema), where_(where) {}

  absl::StatusOr<NodeId> Compile() {
    ALUDEL_RETURN_IF_ERROR(Read());
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
  const ordered_json* Find(const char* keyword) const {
    const auto it = schema_.find(keyword);
    return it == schema_.end() ? nullptr : &*it;
  }

  absl::Status Read() {
    ALUDEL_ASSIGN_OR_RETURN(array_.bounds, ReadCounts(schema_, "minItems", "maxItems", where_));
    array_.prefix = Find("prefixItems");
    array_.items = Find("items");
    // As drafts before 2020-12 wrote it.
    if (array_.prefix == nullptr && array_.items != nullptr && array_.items->is_array()) {
      array_.prefix = std::exchange(array_.items, Find("additionalItems"));
      array_.prefix_name = "items";
      array_.items_name = "additionalItems";
    }
    if (array_.prefix != nullptr && !array_.prefix->is_array()) {
      return SchemaError(where_, absl::StrCat(array_.prefix_name, " is no list"));
    }
    if (array_.prefix != nullptr && array_.prefix->empty()) array_.prefix = nullptr;
    // Where there are listed items, no others are generated unless something asks for them.
    const auto listed = static_cast<int64_t>(array_.prefix == nullptr ? 0 : array_.prefix->size());
    const bool closed =
        array_.items == nullptr ? listed > 0 && array_.bounds.least <= listed : *array_.items == false;
    if (closed && (array_.bounds.most < 0 || array_.bounds.most > listed)) array_.bounds.most = listed;
    if (array_.bounds.most >= 0 && array_.bounds.least > array_.bounds.most) {
      return SchemaError(where_, "minItems asks for more items than there may be");
    }
    if (const ordered_json* unique = Find("uniqueItems")) {
      if (!unique->is_boolean()) return SchemaError(where_, "uniqueItems is no boolean");
      array_.unique = *unique == true && (array_.bounds.most < 0 || array_.bounds.most > 1);
    }
    return ReadContains();
  }

  absl::Status ReadContains() {
    const ordered_json* contains = Find("contains");
    if (contains == nullptr) return absl::OkStatus();
    ALUDEL_ASSIGN_OR_RETURN(array_.contained, ReadCounts(schema_, "minContains", "maxContains", where_));
    if (!schema_.contains("minContains")) array_.contained.least = 1;
    const auto [least, most] = array_.contained;
    if (most >= 0 && least > most) return SchemaError(where_, "minContains is greater than maxContains");
    if (*contains == true || (contains->is_object() && contains->empty())) {
      // Every item is counted.
      CountBounds& bounds = array_.bounds;
      bounds.least = std::max(bounds.least, least);
      if (most >= 0 && (bounds.most < 0 || most < bounds.most)) bounds.most = most;
      if (bounds.most < 0 || bounds.least <= bounds.most) return absl::OkStatus();
      return SchemaError(where_, "contains asks for more items than there may be");
    }
    if (least > 0 || most >= 0) array_.contains = contains;
    return absl::OkStatus();
  }

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

  NodeId Comma(NodeId item) { return builder_.Literal(",", tools_.json->Space(item)); }
  NodeId Close() { return builder_.Literal("]", builder_.ReturnNode()); }
  NodeId Open(NodeId inside) { return builder_.Literal("[", tools_.json->Space(inside)); }

  absl::StatusOr<NodeId> Prefixed(Rule item) {
    const auto [least, most] = array_.bounds;
    const NodeId end = builder_.ReturnNode(), close = Close(), spaced = tools_.json->Space(close);
    auto listed = static_cast<int64_t>(array_.prefix->size());
    NodeId after = spaced;
    if (most >= 0 && most <= listed) {
      listed = most;
    } else {
      const Rule more = builder_.MakeRule(Comma(builder_.Call(item, end)));
      after =
          builder_.Repeat(more, std::max<int64_t>(0, least - listed), most < 0 ? -1 : most - listed, spaced);
    }
    const SchemaPlace inside{&where_, array_.prefix_name};
    std::vector<Rule> rules;
    for (int64_t i = 0; i < listed; ++i) {
      ALUDEL_ASSIGN_OR_RETURN(const Rule rule,
                              tools_.compile((*array_.prefix)[i], SchemaPlace{&inside, "", i}));
      rules.push_back(rule);
    }
    for (int64_t i = listed - 1; i >= 0; --i) {
      const NodeId written = builder_.Call(rules[i], after);
      const NodeId next = i == 0 ? written : Comma(written);
      after = i >= least ? builder_.OneOf({next, i == 0 ? close : spaced}) : next;
    }
    return Open(listed == 0 ? close : after);
  }

  // Which of the values were used is the state: two to the power of their number at worst, which the budget bounds.
  absl::StatusOr<NodeId> Unique() {
    if (array_.prefix != nullptr || array_.contains != nullptr) {
      return SchemaError(where_, "\"uniqueItems\" beside prefixItems or contains is not supported");
    }
    ALUDEL_ASSIGN_OR_RETURN(const auto values, ItemValues(array_.items));
    if (!values || values->size() > kMaxUniqueValues) {
      return SchemaError(where_, absl::StrCat("\"uniqueItems\" is supported where items lists at most ",
                                              kMaxUniqueValues, " values, in enum or const"));
    }
    if (static_cast<int64_t>(values->size()) < array_.bounds.least) {
      return SchemaError(where_, "minItems asks for more items than there are different ones");
    }
    std::vector<Rule> rules;
    for (const ordered_json* value : *values) {
      rules.push_back(builder_.MakeRule(builder_.Literal(WriteValue(*value), builder_.ReturnNode())));
    }
    const size_t most =
        array_.bounds.most < 0 ? values->size() : std::min<size_t>(values->size(), array_.bounds.most);
    std::vector<std::map<uint64_t, NodeId>> used(most + 1);  // by how many
    used[0][0] = -1;
    for (size_t count = 0; count < most; ++count) {
      for (const auto& [set, node] : used[count]) {
        ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(static_cast<int64_t>(rules.size()) * 4));
        for (size_t i = 0; i < rules.size(); ++i) {
          if ((set >> i & 1) == 0) used[count + 1][set | uint64_t{1} << i] = -1;
        }
      }
    }
    const NodeId close = Close(), spaced = tools_.json->Space(close);
    for (size_t count = most + 1; count-- > 0;) {
      for (auto& [set, node] : used[count]) {
        ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(static_cast<int64_t>(rules.size()) * 4));
        std::vector<NodeId> ways, items;
        for (size_t i = 0; i < rules.size() && count < most; ++i) {
          if ((set >> i & 1) == 0) {
            items.push_back(builder_.Call(rules[i], used[count + 1].at(set | uint64_t{1} << i)));
          }
        }
        if (!items.empty()) ways.push_back(count == 0 ? builder_.OneOf(items) : Comma(builder_.OneOf(items)));
        if (static_cast<int64_t>(count) >= array_.bounds.least) ways.push_back(count == 0 ? close : spaced);
        node = builder_.OneOf(ways);
      }
    }
    return Open(used[0][0]);
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
    const auto [least, most] = array_.bounds;
    const auto [counted_least, counted_most] = array_.contained;
    if (counted_most >= 0 && !halves.apart) {
      return SchemaError(where_,
                         "\"maxContains\" is supported where items and contains both list their values");
    }
    // By how many items there are, and how many of them count, each as far as it matters.
    const int64_t rows = most < 0 ? std::max<int64_t>(least, 1) : most;
    const int64_t columns = counted_most < 0 ? counted_least : counted_most;
    std::vector<std::vector<NodeId>> nodes;
    for (int64_t row = 0; row <= rows; ++row) {
      ALUDEL_RETURN_IF_ERROR(tools_.budget->Spend(8 * (columns + 1)));
      nodes.emplace_back(columns + 1);
      for (NodeId& node : nodes.back()) node = builder_.Later();
    }
    const NodeId close = Close(), spaced = tools_.json->Space(close);
    // Backwards, so that it is known which of them can still be closed.
    std::vector<std::vector<bool>> live(rows + 1, std::vector<bool>(columns + 1, false));
    for (int64_t row = rows; row >= 0; --row) {
      const int64_t below = row < rows ? row + 1 : most < 0 ? row : -1;
      for (int64_t column = columns; column >= 0; --column) {
        const int64_t beside = column < columns ? column + 1 : counted_most < 0 ? column : -1;
        const bool closes = row >= least && column >= counted_least;
        std::vector<NodeId> items, ways;
        const auto add = [&](Rule rule, int64_t to_column) {
          if (rule < 0 || below < 0 || to_column < 0) return;
          // A way back to the same place is worth as much as the others there.
          const bool same = below == row && to_column == column;
          if (same ? closes || !items.empty() : live[below][to_column]) {
            items.push_back(builder_.Call(rule, nodes[below][to_column]));
          }
        };
        add(halves.counted, beside);
        add(halves.other, column);
        if (!items.empty()) ways.push_back(row == 0 ? builder_.OneOf(items) : Comma(builder_.OneOf(items)));
        if (closes) ways.push_back(row == 0 ? close : spaced);
        live[row][column] = !ways.empty();
        if (ways.empty()) continue;
        const NodeId node = builder_.OneOf(ways);
        builder_.SetLater(nodes[row][column], node, node);
      }
    }
    if (!live[0][0]) return SchemaError(where_, "its keywords leave no array");
    return Open(nodes[0][0]);
  }

  const SchemaTools& tools_;
  GrammarBuilder& builder_;
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
