#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_filter.h"
#include "runtime/text/chat_template/jinja_strings.h"

namespace aludel {
namespace {

using Result = absl::StatusOr<JinjaValue>;
using Arguments = JinjaArguments;

// `a.b.0` of an item, as the attribute arguments of filters mean it.
Result Path(JinjaValue item, const JinjaValue& path, JinjaBudget* budget) {
  if (path.is_integral()) return JinjaItem(item, path, budget);
  for (const absl::string_view part : absl::StrSplit(JinjaText(path), '.')) {
    int64_t index = 0;
    const JinjaValue key = !part.empty() && part[0] != '-' && absl::SimpleAtoi(part, &index)
                               ? JinjaValue::Int(index)
                               : JinjaValue::String(std::string(part));
    ALUDEL_ASSIGN_OR_RETURN(item, JinjaItem(item, key, budget));
  }
  return item;
}

Result Length(const JinjaValue& value, const Arguments&, JinjaBudget*) {
  if (value.is_undefined()) return JinjaValue::Int(0);
  if (value.is_string()) return JinjaValue::Int(static_cast<int64_t>(CountCodePoints(value.AsString())));
  if (value.is_sequence()) return JinjaValue::Int(static_cast<int64_t>(value.AsList().size()));
  if (value.is_dict()) return JinjaValue::Int(static_cast<int64_t>(value.AsDict().size()));
  return absl::InvalidArgumentError(absl::StrCat(value.Describe(), " has no length"));
}

Result First(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List items, JinjaIterate(value, budget));
  return items.empty() ? JinjaValue::Undefined("the first item of an empty sequence") : items.front();
}

Result Last(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List items, JinjaIterate(value, budget));
  return items.empty() ? JinjaValue::Undefined("the last item of an empty sequence") : items.back();
}

Result ToList(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List items, JinjaIterate(value, budget));
  return JinjaValue::MakeList(std::move(items));
}

Result Items(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  if (value.is_undefined()) return JinjaValue::MakeList({});
  if (!value.is_dict()) return absl::InvalidArgumentError(absl::StrCat("items of ", value.Describe()));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue method, JinjaAttribute(value, "items", budget));
  return method.AsFunction()(arguments);
}

Result Join(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("join", {"d", "attribute"}));
  const std::string separator = bound[0] != nullptr ? JinjaText(*bound[0]) : "";
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    JinjaValue item = items[i];
    if (bound[1] != nullptr) {
      ALUDEL_ASSIGN_OR_RETURN(item, Path(std::move(item), *bound[1], budget));
    }
    if (i > 0) text += separator;
    text += JinjaText(item);
    ALUDEL_RETURN_IF_ERROR(budget->Fits(text.size()));
  }
  return MakeJinjaText(std::move(text), budget);
}

Result Reverse(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List items, JinjaIterate(value, budget));
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return JinjaValue::MakeList(std::move(items));
  std::string text;
  for (const JinjaValue& item : items) text += item.AsString();
  return MakeJinjaText(std::move(text), budget);
}

// The value that sort, unique, min and max compare: an attribute, in lower case unless case counts.
Result SortKey(const JinjaValue& item, const JinjaValue* attribute, bool case_sensitive,
               JinjaBudget* budget) {
  JinjaValue key = item;
  if (attribute != nullptr && !attribute->is_none()) {
    ALUDEL_ASSIGN_OR_RETURN(key, Path(item, *attribute, budget));
  }
  if (key.is_string() && !case_sensitive) return MakeJinjaText(LowerCase(key.AsString()), budget);
  return key;
}

absl::StatusOr<JinjaValue::List> SortBy(std::vector<std::pair<JinjaValue, JinjaValue>> keyed, bool reverse) {
  absl::Status failure;
  const auto less = [&](const auto& a, const auto& b) {
    const absl::StatusOr<int> order =
        reverse ? JinjaCompare(b.first, a.first) : JinjaCompare(a.first, b.first);
    if (!order.ok()) failure = order.status();
    return order.ok() && *order < 0;
  };
  // A comparison that fails is no order; it only has to end, and the result is not used.
  std::stable_sort(keyed.begin(), keyed.end(), less);
  ALUDEL_RETURN_IF_ERROR(failure);
  JinjaValue::List items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return items;
}

Result Sort(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound,
                          arguments.Bind("sort", {"reverse", "case_sensitive", "attribute"}));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const JinjaValue& item : items) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key, SortKey(item, bound[2], JinjaFlag(bound[1]), budget));
    keyed.emplace_back(std::move(key), item);
  }
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List sorted, SortBy(std::move(keyed), JinjaFlag(bound[0])));
  return JinjaValue::MakeList(std::move(sorted));
}

Result DictSort(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("dictsort", {"case_sensitive", "by", "reverse"}));
  if (!value.is_dict()) return absl::InvalidArgumentError(absl::StrCat("dictsort of ", value.Describe()));
  const std::string by = bound[1] != nullptr ? JinjaText(*bound[1]) : "key";
  if (by != "key" && by != "value") return absl::InvalidArgumentError("dictsort wants by key or value");
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue pairs, Items(value, {}, budget));
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const JinjaValue& pair : pairs.AsList()) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key,
                            SortKey(pair.AsList()[by == "value"], nullptr, JinjaFlag(bound[0]), budget));
    keyed.emplace_back(std::move(key), pair);
  }
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List sorted, SortBy(std::move(keyed), JinjaFlag(bound[2])));
  return JinjaValue::MakeList(std::move(sorted));
}

Result Unique(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("unique", {"case_sensitive", "attribute"}));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  JinjaValue::List keys, kept;
  for (const JinjaValue& item : items) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key, SortKey(item, bound[1], JinjaFlag(bound[0]), budget));
    ALUDEL_RETURN_IF_ERROR(budget->Items(keys.size()));
    if (std::any_of(keys.begin(), keys.end(), [&](const JinjaValue& k) { return JinjaEquals(k, key); }))
      continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return JinjaValue::MakeList(std::move(kept));
}

template <bool kLargest>
Result Extreme(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("min or max", {"case_sensitive", "attribute"}));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  if (items.empty()) return JinjaValue::Undefined("the extreme of an empty sequence");
  JinjaValue best, best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key, SortKey(items[i], bound[1], JinjaFlag(bound[0]), budget));
    if (i > 0) {
      ALUDEL_ASSIGN_OR_RETURN(const int order, JinjaCompare(key, best_key));
      if (kLargest ? order <= 0 : order >= 0) continue;
    }
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

Result Sum(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("sum", {"attribute", "start"}));
  JinjaValue total = bound[1] != nullptr ? *bound[1] : JinjaValue::Int(0);
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  for (JinjaValue item : items) {
    if (bound[0] != nullptr && !bound[0]->is_none()) {
      ALUDEL_ASSIGN_OR_RETURN(item, Path(std::move(item), *bound[0], budget));
    }
    ALUDEL_ASSIGN_OR_RETURN(total, JinjaArithmetic("+", total, item, budget));
  }
  return total;
}

// Choosing and mapping.

// The arguments after the first `count` positional ones.
Arguments Rest(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.named = arguments.named;
  if (arguments.positional.size() > count) {
    rest.positional.assign(arguments.positional.begin() + count, arguments.positional.end());
  }
  return rest;
}

// select, reject, selectattr, rejectattr: items for which the test (truth, where none is named) gives `wanted`.
template <bool kByAttribute, bool kWanted>
Result Choose(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  constexpr size_t kTestIndex = kByAttribute ? 1 : 0;
  if (arguments.positional.size() < kTestIndex)
    return absl::InvalidArgumentError("selectattr wants an attribute");
  const bool has_test = arguments.positional.size() > kTestIndex;
  const std::string test = has_test ? JinjaText(arguments.positional[kTestIndex]) : "";
  if (has_test && !IsJinjaTest(test)) {
    return absl::InvalidArgumentError(absl::StrCat("test '", test, "' is not supported"));
  }
  const Arguments rest = Rest(arguments, kTestIndex + 1);
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  JinjaValue::List kept;
  for (const JinjaValue& item : items) {
    JinjaValue subject = item;
    if (kByAttribute) {
      ALUDEL_ASSIGN_OR_RETURN(subject, Path(item, arguments.positional[0], budget));
    }
    bool holds = subject.Truth();
    if (has_test) {
      ALUDEL_ASSIGN_OR_RETURN(holds, ApplyJinjaTest(test, subject, rest));
    }
    if (holds == kWanted) kept.push_back(item);
  }
  return JinjaValue::MakeList(std::move(kept));
}

Result Map(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  JinjaValue::List mapped;
  if (arguments.positional.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("map", {"attribute", "default"}));
    if (bound[0] == nullptr) return absl::InvalidArgumentError("map wants a filter or an attribute");
    for (const JinjaValue& item : items) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue result, Path(item, *bound[0], budget));
      if (result.is_undefined() && bound[1] != nullptr) result = *bound[1];
      mapped.push_back(std::move(result));
    }
    return JinjaValue::MakeList(std::move(mapped));
  }
  const std::string filter = JinjaText(arguments.positional[0]);
  // A filter that maps filters would recurse as deep as a template asks for.
  if (!IsJinjaFilter(filter) || filter == "map") {
    return absl::InvalidArgumentError(absl::StrCat("map: filter '", filter, "' is not supported"));
  }
  const Arguments rest = Rest(arguments, 1);
  for (const JinjaValue& item : items) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue result, ApplyJinjaFilter(filter, item, rest, budget));
    mapped.push_back(std::move(result));
  }
  return JinjaValue::MakeList(std::move(mapped));
}

constexpr struct {
  absl::string_view name;
  JinjaFilter filter;
} kFilters[] = {
    {"count", Length},
    {"dictsort", DictSort},
    {"first", First},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", ToList},
    {"map", Map},
    {"max", Extreme<true>},
    {"min", Extreme<false>},
    {"reject", Choose<false, false>},
    {"rejectattr", Choose<true, false>},
    {"reverse", Reverse},
    {"select", Choose<false, true>},
    {"selectattr", Choose<true, true>},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

JinjaFilter FindSequenceFilter(absl::string_view name) {
  for (const auto& known : kFilters) {
    if (known.name == name) return known.filter;
  }
  return nullptr;
}

}  // namespace aludel
