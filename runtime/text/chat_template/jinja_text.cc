#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_value.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

// Python's repr of a float: the shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double magnitude = std::fabs(value);
  const bool exponent = magnitude != 0.0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value,
                                    exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer, result.ptr);
  if (!exponent && text.find('.') == std::string::npos) text += ".0";
  return text;
}

bool IsPrintable(char32_t character) {
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return character == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(character)) & kHidden) == 0;
}

std::string StringRepr(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t character = NextCodePoint(text, &i);
    if (character == '\\' || character == static_cast<char32_t>(quote)) {
      absl::StrAppend(&result, "\\", text.substr(start, 1));
    } else if (character == '\n') {
      result += "\\n";
    } else if (character == '\r') {
      result += "\\r";
    } else if (character == '\t') {
      result += "\\t";
    } else if (IsPrintable(character)) {
      result.append(text, start, i - start);
    } else if (character < 0x100) {
      absl::StrAppendFormat(&result, "\\x%02x", static_cast<uint32_t>(character));
    } else if (character < 0x10000) {
      absl::StrAppendFormat(&result, "\\u%04x", static_cast<uint32_t>(character));
    } else {
      absl::StrAppendFormat(&result, "\\U%08x", static_cast<uint32_t>(character));
    }
  }
  return result + quote;
}

void AppendRepr(const JinjaValue& value, std::string* text) {
  using Kind = JinjaValue::Kind;
  switch (value.kind()) {
    case Kind::kUndefined:
      *text += "Undefined";
      return;
    case Kind::kNone:
      *text += "None";
      return;
    case Kind::kBool:
      *text += value.AsInt() != 0 ? "True" : "False";
      return;
    case Kind::kInt:
      absl::StrAppend(text, value.AsInt());
      return;
    case Kind::kFloat:
      *text += FloatText(value.AsFloat());
      return;
    case Kind::kString:
      *text += StringRepr(value.AsString());
      return;
    case Kind::kList:
    case Kind::kTuple: {
      const bool is_list = value.kind() == Kind::kList;
      *text += is_list ? '[' : '(';
      const char* separator = "";
      for (const JinjaValue& item : value.AsList()) {
        *text += separator;
        AppendRepr(item, text);
        separator = ", ";
      }
      if (!is_list && value.AsList().size() == 1) *text += ',';
      *text += is_list ? ']' : ')';
      return;
    }
    case Kind::kDict: {
      *text += '{';
      const char* separator = "";
      for (const auto& [key, item] : value.AsDict()) {
        absl::StrAppend(text, separator, StringRepr(key), ": ");
        AppendRepr(item, text);
        separator = ", ";
      }
      *text += '}';
      return;
    }
    case Kind::kNamespace:
    case Kind::kFunction:
    case Kind::kObject:
      absl::StrAppend(text, "<", value.Describe(), ">");
      return;
  }
}

void AppendJsonString(const std::string& value, bool ensure_ascii, std::string* text) {
  const auto escape = [&](uint32_t unit) { absl::StrAppendFormat(text, "\\u%04x", unit); };
  *text += '"';
  for (size_t i = 0; i < value.size();) {
    const size_t start = i;
    const char32_t character = NextCodePoint(value, &i);
    static constexpr absl::string_view kShort = "\"\\\n\r\t\f\b";
    static constexpr absl::string_view kLetters = "\"\\nrtfb";
    const size_t found =
        character < 0x80 ? kShort.find(static_cast<char>(character)) : absl::string_view::npos;
    if (found != absl::string_view::npos) {
      absl::StrAppend(text, "\\", kLetters.substr(found, 1));
    } else if (character < 0x20 || (ensure_ascii && character >= 0x7f && character < 0x10000)) {
      escape(character);
    } else if (ensure_ascii && character >= 0x10000) {
      escape(0xd800 + ((character - 0x10000) >> 10));
      escape(0xdc00 + ((character - 0x10000) & 0x3ff));
    } else {
      text->append(value, start, i - start);
    }
  }
  *text += '"';
}

class JsonWriter {
 public:
  JsonWriter(const JinjaJsonOptions& options, std::string* text) : options_(options), text_(text) {}

  absl::Status Write(const JinjaValue& value, int level) {
    using Kind = JinjaValue::Kind;
    switch (value.kind()) {
      case Kind::kNone:
        *text_ += "null";
        return absl::OkStatus();
      case Kind::kBool:
        *text_ += value.AsInt() != 0 ? "true" : "false";
        return absl::OkStatus();
      case Kind::kInt:
        absl::StrAppend(text_, value.AsInt());
        return absl::OkStatus();
      case Kind::kFloat:
        WriteFloat(value.AsFloat());
        return absl::OkStatus();
      case Kind::kString:
        AppendJsonString(value.AsString(), options_.ensure_ascii, text_);
        return absl::OkStatus();
      case Kind::kList:
      case Kind::kTuple:
        return WriteList(value.AsList(), level);
      case Kind::kDict:
        return WriteDict(value.AsDict(), level);
      default:
        return absl::InvalidArgumentError(absl::StrCat("tojson: ", value.Describe(), " has no JSON form"));
    }
  }

 private:
  void WriteFloat(double value) {
    if (std::isnan(value)) {
      *text_ += "NaN";
    } else if (std::isinf(value)) {
      *text_ += value < 0 ? "-Infinity" : "Infinity";
    } else {
      *text_ += FloatText(value);
    }
  }
  void Break(int level) {
    if (!options_.indent.has_value()) return;
    *text_ += '\n';
    for (int i = 0; i < level; ++i) *text_ += *options_.indent;
  }
  absl::Status WriteList(const JinjaValue::List& items, int level) {
    *text_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) *text_ += options_.item_separator;
      Break(level + 1);
      ALUDEL_RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) Break(level);
    *text_ += ']';
    return absl::OkStatus();
  }
  absl::Status WriteDict(JinjaValue::Dict items, int level) {
    if (options_.sort_keys) {
      std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    *text_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) *text_ += options_.item_separator;
      Break(level + 1);
      AppendJsonString(items[i].first, options_.ensure_ascii, text_);
      *text_ += options_.key_separator;
      ALUDEL_RETURN_IF_ERROR(Write(items[i].second, level + 1));
    }
    if (!items.empty()) Break(level);
    *text_ += '}';
    return absl::OkStatus();
  }

  const JinjaJsonOptions& options_;
  std::string* text_;
};

}  // namespace

std::string JinjaRepr(const JinjaValue& value) {
  std::string text;
  AppendRepr(value, &text);
  return text;
}

std::string JinjaText(const JinjaValue& value) {
  if (value.is_string()) return value.AsString();
  if (value.is_undefined()) return "";
  return JinjaRepr(value);
}

absl::StatusOr<std::string> JinjaJson(const JinjaValue& value, const JinjaJsonOptions& options) {
  std::string text;
  ALUDEL_RETURN_IF_ERROR(JsonWriter(options, &text).Write(value, 0));
  return text;
}

}  // namespace aludel
