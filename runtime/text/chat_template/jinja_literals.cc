#include "runtime/text/chat_template/jinja_literals.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_lexer.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Behind the decimal integer or float at `begin`, which may have underscores between its digits.
size_t NumberEnd(absl::string_view in, size_t begin, bool* is_float) {
  const auto digits = [&](size_t from) {
    while (from < in.size() && (IsDigit(in[from]) || (in[from] == '_' && from > begin))) ++from;
    return from;
  };
  size_t end = digits(begin);
  if (end + 1 < in.size() && in[end] == '.' && IsDigit(in[end + 1])) {
    *is_float = true;
    end = digits(end + 1);
  }
  if (end < in.size() && (in[end] == 'e' || in[end] == 'E')) {
    size_t exponent = end + 1;
    if (exponent < in.size() && (in[exponent] == '+' || in[exponent] == '-')) ++exponent;
    if (exponent < in.size() && IsDigit(in[exponent])) {
      *is_float = true;
      end = digits(exponent);
    }
  }
  return end;
}

// One escape of a Python string literal at in[*at], which moves behind it; an unknown one stays as it is.
absl::Status UnescapeInto(absl::string_view in, int line, size_t* at, std::string* text) {
  const char letter = *at + 1 < in.size() ? in[*at + 1] : '\0';
  static constexpr absl::string_view kLetters = "\\'\"abfnrtv";
  static constexpr absl::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  if (const size_t found = kLetters.find(letter); letter != '\0' && found != absl::string_view::npos) {
    *text += kMeanings[found];
    *at += 2;
    return absl::OkStatus();
  }
  if (letter == '\n') {
    *at += 2;
    return absl::OkStatus();
  }
  if (letter >= '0' && letter <= '7') {
    uint32_t value = 0;
    size_t i = *at + 1;
    for (; i < *at + 4 && i < in.size() && in[i] >= '0' && in[i] <= '7'; ++i)
      value = value * 8 + (in[i] - '0');
    AppendUtf8(value, text);
    *at = i;
    return absl::OkStatus();
  }
  const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
  if (digits == 0) {
    *text += '\\';
    ++*at;
    return absl::OkStatus();
  }
  const absl::string_view hex = in.substr(*at + 2, digits);
  uint32_t value = 0;
  const bool is_hex = hex.size() == digits && std::all_of(hex.begin(), hex.end(), [](char c) {
                        return std::isxdigit(static_cast<unsigned char>(c)) != 0;
                      });
  if (!is_hex || !absl::SimpleHexAtoi(hex, &value) || value > 0x10ffff ||
      (value >= 0xd800 && value < 0xe000)) {
    return JinjaError(line, absl::StrCat("string escape \\", in.substr(*at + 1, 1), hex, " is no character"));
  }
  AppendUtf8(value, text);
  *at += 2 + digits;
  return absl::OkStatus();
}

}  // namespace

JinjaNumber ReadJinjaNumber(absl::string_view in, size_t begin) {
  JinjaNumber number;
  number.end = NumberEnd(in, begin, &number.is_float);
  number.digits = std::string(in.substr(begin, number.end - begin));
  number.digits.erase(std::remove(number.digits.begin(), number.digits.end(), '_'), number.digits.end());
  return number;
}

absl::StatusOr<std::string> ReadJinjaString(absl::string_view in, int line, size_t* at) {
  const char quote = in[*at];
  std::string text;
  size_t i = *at + 1;
  while (i < in.size() && in[i] != quote) {
    if (in[i] != '\\') {
      text += in[i++];
      continue;
    }
    ALUDEL_RETURN_IF_ERROR(UnescapeInto(in, line, &i, &text));
  }
  if (i >= in.size()) return JinjaError(line, "a string has no end");
  *at = i + 1;
  return text;
}

}  // namespace aludel
