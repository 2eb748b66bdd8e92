#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_filter.h"
#include "runtime/text/chat_template/jinja_strings.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using Result = absl::StatusOr<JinjaValue>;
using Arguments = JinjaArguments;

// Text.

Result Trim(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("trim", {"chars"}));
  const bool white_space = bound[0] == nullptr || bound[0]->is_none();
  const std::string characters = white_space ? std::string() : JinjaText(*bound[0]);
  return MakeJinjaText(StripCharacters(JinjaText(value), white_space ? nullptr : &characters, true, true),
                       budget);
}

template <std::string (*Change)(const std::string&)>
Result ChangeCase(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(arguments.Bind("the filter", {}).status());
  return MakeJinjaText(Change(JinjaText(value)), budget);
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
  return MakeJinjaText(std::move(text), budget);
}

Result Escape(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  return MakeJinjaText(
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
  if (JinjaFlag(bound[1])) text += indention;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += '\n';
    if (i > 0 && (JinjaFlag(bound[2]) || !lines[i].empty())) text += indention;
    text += lines[i];
  }
  return MakeJinjaText(std::move(text), budget);
}

Result Text(const JinjaValue& value, const Arguments&, JinjaBudget* budget) {
  return MakeJinjaText(JinjaText(value), budget);
}

Result ToJson(const JinjaValue& value, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound,
                          arguments.Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JinjaJsonOptions options;
  options.ensure_ascii = JinjaFlag(bound[0]);
  options.sort_keys = JinjaFlag(bound[3]);
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
  return MakeJinjaText(std::move(text), budget);
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

Result Default(const JinjaValue& value, const Arguments& arguments, JinjaBudget*) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("default", {"default_value", "boolean"}));
  const bool missing = value.is_undefined() || (JinjaFlag(bound[1]) && !value.Truth());
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
  JinjaFilter filter;
} kFilters[] = {
    {"abs", Abs},
    {"attr", Attr},
    {"capitalize", ChangeCase<Capitalize>},
    {"d", Default},
    {"default", Default},
    {"e", Escape},
    {"escape", Escape},
    {"float", ToFloat},
    {"indent", Indent},
    {"int", ToInt},
    {"lower", ChangeCase<LowerCase>},
    {"replace", Replace},
    {"round", Round},
    {"safe", Text},
    {"string", Text},
    {"title", ChangeCase<TitleWords>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"upper", ChangeCase<UpperCase>},
};

JinjaFilter FindFilter(absl::string_view name) {
  for (const auto& known : kFilters) {
    if (known.name == name) return known.filter;
  }
  return FindSequenceFilter(name);
}

}  // namespace

absl::StatusOr<JinjaValue> MakeJinjaText(std::string text, JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Text(text.size()));
  return JinjaValue::String(std::move(text));
}

bool IsJinjaFilter(absl::string_view name) { return FindFilter(name) != nullptr; }

Result ApplyJinjaFilter(const std::string& name, const JinjaValue& operand, const JinjaArguments& arguments,
                        JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Step());
  return FindFilter(name)(operand, arguments, budget);
}

}  // namespace aludel
