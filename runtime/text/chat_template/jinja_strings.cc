#include "runtime/text/chat_template/jinja_strings.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using Arguments = JinjaArguments;
using Result = absl::StatusOr<JinjaValue>;

absl::StatusOr<std::string> TextArgument(const JinjaValue* value, absl::string_view callee) {
  if (value == nullptr || !value->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(callee, " got ", value == nullptr ? "nothing" : value->Describe(), ", wants a string"));
  }
  return value->AsString();
}

absl::StatusOr<int64_t> IntArgument(const JinjaValue* value, int64_t fallback, absl::string_view callee) {
  if (value == nullptr) return fallback;
  if (!value->is_integral()) {
    return absl::InvalidArgumentError(absl::StrCat(callee, " got ", value->Describe(), ", wants an integer"));
  }
  return value->AsInt();
}

Result ListOf(const std::vector<std::string>& texts, JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Items(texts.size()));
  JinjaValue::List items;
  for (const std::string& text : texts) {
    ALUDEL_RETURN_IF_ERROR(budget->Text(text.size()));
    items.push_back(JinjaValue::String(text));
  }
  return JinjaValue::MakeList(std::move(items));
}

// str.split() without a separator: runs of white space divide, none at the ends.
std::vector<std::string> SplitWhiteSpace(absl::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (true) {
    for (size_t next = at; next < text.size(); at = next) {
      if (!IsPythonSpace(NextCodePoint(text, &next))) break;
    }
    if (at >= text.size()) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(StripCharacters(text.substr(at), nullptr, false, true));
      break;
    }
    size_t end = at;
    for (size_t next = end; next < text.size(); end = next) {
      if (IsPythonSpace(NextCodePoint(text, &next))) break;
    }
    parts.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return parts;
}

std::vector<std::string> SplitAt(absl::string_view text, absl::string_view separator, int64_t limit,
                                 bool from_right) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = from_right ? text.rfind(separator) : text.find(separator);
    if (found == absl::string_view::npos) break;
    if (from_right) {
      parts.emplace_back(text.substr(found + separator.size()));
      text = text.substr(0, found);
    } else {
      parts.emplace_back(text.substr(0, found));
      text.remove_prefix(found + separator.size());
    }
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result Split(const std::string& text, const Arguments& arguments, bool from_right, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("split", {"sep", "maxsplit"}));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t limit, IntArgument(bound[1], -1, "split"));
  if (bound[0] == nullptr || bound[0]->is_none()) {
    if (from_right && limit >= 0) return absl::InvalidArgumentError("rsplit wants a separator with maxsplit");
    return ListOf(SplitWhiteSpace(text, limit), budget);
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string separator, TextArgument(bound[0], "split"));
  if (separator.empty()) return absl::InvalidArgumentError("split got an empty separator");
  return ListOf(SplitAt(text, separator, limit, from_right), budget);
}

// startswith and endswith; the argument may be a tuple of alternatives.
Result HasAffix(const std::string& text, const Arguments& arguments, bool at_start) {
  const char* name = at_start ? "startswith" : "endswith";
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"affix"}));
  JinjaValue::List affixes;
  if (bound[0] != nullptr && bound[0]->kind() == JinjaValue::Kind::kTuple) {
    affixes = bound[0]->AsList();
  } else if (bound[0] != nullptr) {
    affixes = {*bound[0]};
  }
  if (bound[0] == nullptr) return TextArgument(nullptr, name).status();
  for (const JinjaValue& affix : affixes) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string part, TextArgument(&affix, name));
    if (at_start ? absl::StartsWith(text, part) : absl::EndsWith(text, part)) return JinjaValue::Bool(true);
  }
  return JinjaValue::Bool(false);
}

Result Strip(const std::string& text, const Arguments& arguments, bool left, bool right,
             JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("strip", {"chars"}));
  ALUDEL_RETURN_IF_ERROR(budget->Text(text.size()));
  if (bound[0] == nullptr || bound[0]->is_none()) {
    return JinjaValue::String(StripCharacters(text, nullptr, left, right));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string characters, TextArgument(bound[0], "strip"));
  ALUDEL_RETURN_IF_ERROR(budget->Text(characters.size()));
  return JinjaValue::String(StripCharacters(text, &characters, left, right));
}

// str.title(): every run of cased letters starts with a title letter.
std::string TitleCase(const std::string& text) {
  std::string result;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const auto character = static_cast<UChar32>(NextCodePoint(text, &i));
    const UChar32 changed = in_word ? u_tolower(character) : u_totitle(character);
    AppendUtf8(static_cast<char32_t>(changed), &result);
    in_word = u_hasBinaryProperty(character, UCHAR_CASED);
  }
  return result;
}

Result Find(const std::string& text, const Arguments& arguments, const std::string& name) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"sub"}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string part, TextArgument(bound[0], name));
  const size_t found = name[0] == 'r' ? text.rfind(part) : text.find(part);
  if (found == std::string::npos && (name == "index" || name == "rindex")) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": substring not found"));
  }
  if (found == std::string::npos) return JinjaValue::Int(-1);
  return JinjaValue::Int(static_cast<int64_t>(CountCodePoints(absl::string_view(text).substr(0, found))));
}

Result Count(const std::string& text, const Arguments& arguments) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("count", {"sub"}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string part, TextArgument(bound[0], "count"));
  if (part.empty()) return JinjaValue::Int(static_cast<int64_t>(CountCodePoints(text)) + 1);
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return JinjaValue::Int(count);
}

Result Replace(const std::string& text, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("replace", {"old", "new", "count"}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string from, TextArgument(bound[0], "replace"));
  ALUDEL_ASSIGN_OR_RETURN(const std::string to, TextArgument(bound[1], "replace"));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t count, IntArgument(bound[2], -1, "replace"));
  ALUDEL_ASSIGN_OR_RETURN(std::string result, ReplaceText(text, from, to, count, budget));
  return JinjaValue::String(std::move(result));
}

Result RemoveAffix(const std::string& text, const Arguments& arguments, const std::string& name) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"affix"}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string part, TextArgument(bound[0], name));
  if (name == "removeprefix" && absl::StartsWith(text, part))
    return JinjaValue::String(text.substr(part.size()));
  if (name == "removesuffix" && absl::EndsWith(text, part)) {
    return JinjaValue::String(text.substr(0, text.size() - part.size()));
  }
  return JinjaValue::String(text);
}

Result Partition(const std::string& text, const Arguments& arguments, bool from_right) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("partition", {"sep"}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string part, TextArgument(bound[0], "partition"));
  if (part.empty()) return absl::InvalidArgumentError("partition got an empty separator");
  const size_t found = from_right ? text.rfind(part) : text.find(part);
  std::vector<std::string> parts = {text, "", ""};
  if (found == std::string::npos && from_right) parts = {"", "", text};
  if (found != std::string::npos) parts = {text.substr(0, found), part, text.substr(found + part.size())};
  JinjaValue::List items;
  for (std::string& item : parts) items.push_back(JinjaValue::String(std::move(item)));
  return JinjaValue::MakeTuple(std::move(items));
}

Result JoinWith(const std::string& separator, const Arguments& arguments, JinjaBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("join", {"iterable"}));
  if (bound[0] == nullptr) return absl::InvalidArgumentError("join got nothing, wants an iterable");
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue::List items, JinjaIterate(*bound[0], budget));
  std::string result;
  for (const JinjaValue& item : items) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string text, TextArgument(&item, "join"));
    if (&item != &items.front()) result += separator;
    result += text;
    ALUDEL_RETURN_IF_ERROR(budget->Text(text.size() + separator.size()));
  }
  return JinjaValue::String(std::move(result));
}

// isdigit, isalpha, ...: not empty, and all characters satisfy the property.
std::optional<bool> CharacterClass(const std::string& text, const std::string& name) {
  bool (*matches)(UChar32) = nullptr;
  if (name == "isdigit" || name == "isdecimal") matches = [](UChar32 c) { return u_isdigit(c) != 0; };
  if (name == "isnumeric")
    matches = [](UChar32 c) { return u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != 0; };
  if (name == "isalpha") matches = [](UChar32 c) { return u_isalpha(c) != 0; };
  if (name == "isalnum") {
    matches = [](UChar32 c) { return u_isalpha(c) || u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != 0; };
  }
  if (name == "isspace") matches = [](UChar32 c) { return IsPythonSpace(static_cast<char32_t>(c)); };
  if (matches == nullptr) return std::nullopt;
  for (size_t i = 0; i < text.size();) {
    if (!matches(static_cast<UChar32>(NextCodePoint(text, &i)))) return false;
  }
  return !text.empty();
}

Result CallMethod(const std::string& text, const std::string& name, const Arguments& arguments,
                  JinjaBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Text(text.size()));
  if (name == "strip") return Strip(text, arguments, true, true, budget);
  if (name == "lstrip") return Strip(text, arguments, true, false, budget);
  if (name == "rstrip") return Strip(text, arguments, false, true, budget);
  if (name == "split") return Split(text, arguments, false, budget);
  if (name == "rsplit") return Split(text, arguments, true, budget);
  if (name == "startswith") return HasAffix(text, arguments, true);
  if (name == "endswith") return HasAffix(text, arguments, false);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex")
    return Find(text, arguments, name);
  if (name == "count") return Count(text, arguments);
  if (name == "replace") return Replace(text, arguments, budget);
  if (name == "removeprefix" || name == "removesuffix") return RemoveAffix(text, arguments, name);
  if (name == "partition") return Partition(text, arguments, false);
  if (name == "rpartition") return Partition(text, arguments, true);
  if (name == "join") return JoinWith(text, arguments, budget);
  if (name == "splitlines") {
    ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"keepends"}));
    return ListOf(SplitLines(text, bound[0] != nullptr && bound[0]->Truth()), budget);
  }
  ALUDEL_RETURN_IF_ERROR(arguments.Bind(name, {}).status());
  if (name == "upper") return JinjaValue::String(UpperCase(text));
  if (name == "lower") return JinjaValue::String(LowerCase(text));
  if (name == "title") return JinjaValue::String(TitleCase(text));
  if (name == "capitalize") return JinjaValue::String(Capitalize(text));
  if (name == "isupper" || name == "islower") {
    const bool is_upper = name == "isupper";
    return JinjaValue::Bool(text == (is_upper ? UpperCase(text) : LowerCase(text)) &&
                            text != (is_upper ? LowerCase(text) : UpperCase(text)));
  }
  return JinjaValue::Bool(CharacterClass(text, name).value_or(false));
}

constexpr absl::string_view kMethods[] = {
    "strip",        "lstrip",       "rstrip",    "split",      "rsplit",  "splitlines", "startswith",
    "endswith",     "find",         "rfind",     "index",      "rindex",  "count",      "replace",
    "upper",        "lower",        "title",     "capitalize", "join",    "isupper",    "islower",
    "removeprefix", "removesuffix", "partition", "rpartition", "isdigit", "isdecimal",  "isalpha",
    "isalnum",      "isspace",      "isnumeric"};

}  // namespace

std::optional<JinjaValue> JinjaStringMethod(const std::string& text, const std::string& name,
                                            JinjaBudget* budget) {
  if (std::find(std::begin(kMethods), std::end(kMethods), absl::string_view(name)) == std::end(kMethods)) {
    return std::nullopt;
  }
  return JinjaValue::MakeFunction(name, [text, name, budget](const Arguments& arguments) {
    return CallMethod(text, name, arguments, budget);
  });
}

size_t CountCodePoints(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; }));
}

std::vector<absl::string_view> SplitCodePoints(absl::string_view text) {
  std::vector<absl::string_view> result;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    NextCodePoint(text, &i);
    result.push_back(text.substr(start, i - start));
  }
  return result;
}

std::string UpperCase(const std::string& text) {
  std::string result;
  icu::UnicodeString::fromUTF8(text).toUpper(icu::Locale::getRoot()).toUTF8String(result);
  return result;
}

std::string LowerCase(const std::string& text) {
  std::string result;
  icu::UnicodeString::fromUTF8(text).toLower(icu::Locale::getRoot()).toUTF8String(result);
  return result;
}

std::string Capitalize(const std::string& text) {
  if (text.empty()) return text;
  size_t first = 0;
  const auto character = static_cast<UChar32>(NextCodePoint(text, &first));
  std::string result;
  AppendUtf8(static_cast<char32_t>(u_totitle(character)), &result);
  return result + LowerCase(text.substr(first));
}

std::string StripCharacters(absl::string_view text, const std::string* characters, bool left, bool right) {
  std::vector<char32_t> set;
  for (size_t i = 0; characters != nullptr && i < characters->size();)
    set.push_back(NextCodePoint(*characters, &i));
  const auto strips = [&](char32_t character) {
    if (characters == nullptr) return IsPythonSpace(character);
    return std::find(set.begin(), set.end(), character) != set.end();
  };
  size_t begin = 0;
  size_t end = text.size();
  for (size_t next = begin; left && next < end; begin = next) {
    if (!strips(NextCodePoint(text, &next))) break;
  }
  for (size_t next = end; right && next > begin; end = next) {
    if (!strips(PreviousCodePoint(text, &next))) break;
  }
  return std::string(text.substr(begin, end - begin));
}

std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = NextCodePoint(text, &i);
    const bool ends =
        (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(begin, (keep_ends ? i : start) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

absl::StatusOr<std::string> ReplaceText(const std::string& text, const std::string& from,
                                        const std::string& to, int64_t count, JinjaBudget* budget) {
  std::string result;
  size_t copied = 0;
  int64_t replaced = 0;
  // An empty `from` matches before every character and at the end, as in Python.
  size_t at = from.empty() ? 0 : text.find(from);
  while (at != std::string::npos && (count < 0 || replaced < count)) {
    ALUDEL_RETURN_IF_ERROR(budget->Text(at - copied + to.size()));
    result.append(text, copied, at - copied).append(to);
    ALUDEL_RETURN_IF_ERROR(budget->Fits(result.size()));
    copied = at + from.size();
    ++replaced;
    if (!from.empty()) {
      at = text.find(from, copied);
    } else if (at >= text.size()) {
      break;
    } else {
      NextCodePoint(text, &at);
    }
  }
  return result.append(text, copied, std::string::npos);
}

}  // namespace aludel
