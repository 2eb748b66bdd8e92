#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_strings.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using Result = absl::StatusOr<JinjaValue>;
using Arguments = JinjaArguments;
using Filter = Result (*)(const JinjaValue&, const Arguments&, JinjaBudget*);

Result MakeText(std::string text, JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Text(text.size()));
  return JinjaValue::String(std::move(text));
}

bool Flag(const JinjaValue* value) { return value != nullptr && value->Truth(); }

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

// Text and items.

Result Trim(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("trim", {"chars"}));
  const bool white_space = bound[0] == nullptr || bound[0]->is_none();
  const std::string characters = white_space ? std::string() : JinjaText(*bound[0]);
  return MakeText(StripCharacters(JinjaText(value), white_space ? nullptr : &characters, true, true), budget);
}

template <std::string (*Change)(const std::string&)>
Result ChangeCase(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(arguments.Bind("the filter", {}).status());
  return MakeText(Change(JinjaText(value)), budget);
}

// The filter, unlike str.title(), starts words after white space, hyphens and opening brackets.
std::string TitleWords(const std::string& text) {
  std::string result;
  std::string word;
  const auto end_word = [&] {
    result += Capitalize(word);
    word.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t character = NextCodePoint(text, &i);
    if (IsPythonSpace(character) ||
        (character < 0x80 && absl::string_view("-({[<").find(text[start]) != absl::string_view::npos)) {
      end_word();
      result.append(text, start, i - start);
    } else {
      word.append(text, start, i - start);
    }
  }
  end_word();
  return result;
}

Result Replace(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("replace", {"old", "new", "count"}));
  if (bound[0] == nullptr || bound[1] == nullptr)
    return absl::InvalidArgumentError("replace wants old and new");
  const int64_t count = bound[2] != nullptr && bound[2]->is_integral() ? bound[2]->AsInt() : -1;
  ALUDEL_ASSIGN_OR_RETURN(std::string text, ReplaceText(JinjaText(value), JinjaText(*bound[0]),
                                                        JinjaText(*bound[1]), count, budget));
  return MakeText(std::move(text), budget);
}

Result Escape(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  return MakeText(
      absl::StrReplaceAll(JinjaText(value),
                          {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}}),
      budget);
}

Result Indent(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("indent", {"width", "first", "blank"}));
  std::string indention(4, ' ');
  if (bound[0] != nullptr && bound[0]->is_string()) {
    indention = bound[0]->AsString();
  } else if (bound[0] != nullptr && bound[0]->is_integral()) {
    const int64_t width = std::max<int64_t>(bound[0]->AsInt(), 0);
    ALUDEL_RETURN_IF_ERROR(budget->Text(static_cast<size_t>(width)));
    indention.assign(static_cast<size_t>(width), ' ');
  }
  std::string source = JinjaText(value);
  source += '\n';
  const std::vector<std::string> lines = SplitLines(source, /*keep_ends=*/false);
  ALUDEL_RETURN_IF_ERROR(budget->Fits(lines.size() * indention.size()));
  std::string text;
  if (Flag(bound[1])) text += indention;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += '\n';
    if (i > 0 && (Flag(bound[2]) || !lines[i].empty())) text += indention;
    text += lines[i];
  }
  return MakeText(std::move(text), budget);
}

Result Text(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  return MakeText(JinjaText(value), budget);
}

Result ToJson(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound,
                          arguments.Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JinjaJsonOptions options;
  options.ensure_ascii = Flag(bound[0]);
  options.sort_keys = Flag(bound[3]);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    constexpr int64_t kMaxIndent = 64;
    if (!bound[1]->is_string() && (!bound[1]->is_integral() || bound[1]->AsInt() > kMaxIndent)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: indent is no string or integer up to ", kMaxIndent));
    }
    options.indent = bound[1]->is_string() ? bound[1]->AsString()
                                           : std::string(std::max<int64_t>(bound[1]->AsInt(), 0), ' ');
    options.item_separator.assign(1, ',');
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    if (!bound[2]->is_sequence() || bound[2]->AsList().size() != 2 || !bound[2]->AsList()[0].is_string() ||
        !bound[2]->AsList()[1].is_string()) {
      return absl::InvalidArgumentError("tojson: separators wants two strings");
    }
    options.item_separator = bound[2]->AsList()[0].AsString();
    options.key_separator = bound[2]->AsList()[1].AsString();
  }
  ALUDEL_ASSIGN_OR_RETURN(std::string text, JinjaJson(value, options));
  return MakeText(std::move(text), budget);
}

// Numbers.

Result ToInt(const JinjaValue& value, const Arguments& arguments, JinjaBudget*) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("int", {"default"}));
  const JinjaValue fallback = bound[0] != nullptr ? *bound[0] : JinjaValue::Int(0);
  if (value.is_integral()) return JinjaValue::Int(value.AsInt());
  double number = 0.0;
  if (value.is_string()) {
    int64_t integer = 0;
    if (absl::SimpleAtoi(value.AsString(), &integer)) return JinjaValue::Int(integer);
    if (!absl::SimpleAtod(value.AsString(), &number)) return fallback;
  } else if (value.is_number()) {
    number = value.AsFloat();
  } else {
    return fallback;
  }
  if (!std::isfinite(number) || std::fabs(number) >= 9.2e18) return fallback;
  return JinjaValue::Int(static_cast<int64_t>(number));
}

Result ToFloat(const JinjaValue& value, const Arguments& arguments, JinjaBudget*) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("float", {"default"}));
  if (value.is_number()) return JinjaValue::Float(value.AsFloat());
  double number = 0.0;
  if (value.is_string() && absl::SimpleAtod(value.AsString(), &number)) return JinjaValue::Float(number);
  return bound[0] != nullptr ? *bound[0] : JinjaValue::Float(0.0);
}

Result Abs(const JinjaValue& value, const Arguments&, JinjaBudget*) {
  if (value.is_integral() && value.AsInt() != INT64_MIN) return JinjaValue::Int(std::abs(value.AsInt()));
  if (value.kind() == JinjaValue::Kind::kFloat) return JinjaValue::Float(std::fabs(value.AsFloat()));
  return absl::InvalidArgumentError(absl::StrCat("abs of ", value.Describe()));
}

Result Round(const JinjaValue& value, const Arguments& arguments, JinjaBudget*) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("round", {"precision", "method"}));
  if (!value.is_number()) return absl::InvalidArgumentError(absl::StrCat("round of ", value.Describe()));
  const int64_t precision = bound[0] != nullptr && bound[0]->is_integral() ? bound[0]->AsInt() : 0;
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const std::string method = bound[1] != nullptr ? JinjaText(*bound[1]) : "common";
  const double scaled = value.AsFloat() * scale;
  if (method == "floor") return JinjaValue::Float(std::floor(scaled) / scale);
  if (method == "ceil") return JinjaValue::Float(std::ceil(scaled) / scale);
  if (method != "common") return absl::InvalidArgumentError("round wants method common, floor or ceil");
  return JinjaValue::Float(std::nearbyint(scaled) / scale);
}

// Sequences.

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
  return MakeText(std::move(text), budget);
}

Result Reverse(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List items, JinjaIterate(value, budget));
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return JinjaValue::MakeList(std::move(items));
  std::string text;
  for (const JinjaValue& item : items) text += item.AsString();
  return MakeText(std::move(text), budget);
}

// The value that sort, unique, min and max compare: an attribute, in lower case unless case counts.
Result SortKey(const JinjaValue& item, const JinjaValue* attribute, bool case_sensitive,
               JinjaBudget* budget) {
  JinjaValue key = item;
  if (attribute != nullptr && !attribute->is_none()) {
    ALUDEL_ASSIGN_OR_RETURN(key, Path(item, *attribute, budget));
  }
  if (key.is_string() && !case_sensitive) return MakeText(LowerCase(key.AsString()), budget);
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
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key, SortKey(item, bound[2], Flag(bound[1]), budget));
    keyed.emplace_back(std::move(key), item);
  }
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List sorted, SortBy(std::move(keyed), Flag(bound[0])));
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
                            SortKey(pair.AsList()[by == "value"], nullptr, Flag(bound[0]), budget));
    keyed.emplace_back(std::move(key), pair);
  }
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue::List sorted, SortBy(std::move(keyed), Flag(bound[2])));
  return JinjaValue::MakeList(std::move(sorted));
}

Result Unique(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("unique", {"case_sensitive", "attribute"}));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(value, budget));
  JinjaValue::List keys, kept;
  for (const JinjaValue& item : items) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key, SortKey(item, bound[1], Flag(bound[0]), budget));
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
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue key, SortKey(items[i], bound[1], Flag(bound[0]), budget));
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

// select, reject, selectattr, rejectattr: items for which the test (truth, where none is named) gives
// `wanted`.
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

Result Default(const JinjaValue& value, const Arguments& arguments, JinjaBudget*) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("default", {"default_value", "boolean"}));
  const bool missing = value.is_undefined() || (Flag(bound[1]) && !value.Truth());
  if (!missing) return value;
  return bound[0] != nullptr ? *bound[0] : JinjaValue::String("");
}

Result Attr(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("attr", {"name"}));
  if (bound[0] == nullptr) return absl::InvalidArgumentError("attr wants a name");
  // Unlike a dot, it never looks for a member of a dictionary.
  if (value.is_dict() && value.Find(JinjaText(*bound[0])) != nullptr) {
    return JinjaValue::Undefined(absl::StrCat("attribute '", JinjaText(*bound[0]), "'"));
  }
  return JinjaAttribute(value, JinjaText(*bound[0]), budget);
}

constexpr struct {
  absl::string_view name;
  Filter filter;
} kFilters[] = {
    {"abs", Abs},
    {"attr", Attr},
    {"capitalize", ChangeCase<Capitalize>},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"e", Escape},
    {"escape", Escape},
    {"first", First},
    {"float", ToFloat},
    {"indent", Indent},
    {"int", ToInt},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", ToList},
    {"lower", ChangeCase<LowerCase>},
    {"map", Map},
    {"max", Extreme<true>},
    {"min", Extreme<false>},
    {"reject", Choose<false, false>},
    {"rejectattr", Choose<true, false>},
    {"replace", Replace},
    {"reverse", Reverse},
    {"round", Round},
    {"safe", Text},
    {"select", Choose<false, true>},
    {"selectattr", Choose<true, true>},
    {"sort", Sort},
    {"string", Text},
    {"sum", Sum},
    {"title", ChangeCase<TitleWords>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"unique", Unique},
    {"upper", ChangeCase<UpperCase>},
};

const Filter* FindFilter(absl::string_view name) {
  for (const auto& known : kFilters) {
    if (known.name == name) return &known.filter;
  }
  return nullptr;
}

}  // namespace

bool IsJinjaFilter(absl::string_view name) { return FindFilter(name) != nullptr; }

Result ApplyJinjaFilter(const std::string& name, const JinjaValue& operand, const JinjaArguments& arguments,
                        JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Step());
  return (*FindFilter(name))(operand, arguments, budget);
}

}  // namespace aludel
