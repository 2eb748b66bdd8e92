#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/regex.h"

namespace aludel {
namespace {

// What Oniguruma's \w is; PCRE2 10.42 has L, N and the underscore.
constexpr char kWordClass[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside a class Oniguruma asks its table of Latin-1, where superscripts and fractions are words as well.
constexpr char kLatin1Words[] = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Walks the pattern once, copying what means the same in both engines.
class Translator {
 public:
  explicit Translator(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) ALUDEL_RETURN_IF_ERROR(Item());
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("regex /", in_, "/: ", what, " at byte ", at_, " is not supported"));
  }
  char Peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void Copy(size_t count) {
    out_.append(in_.data() + at_, count);
    at_ += count;
  }

  absl::Status Item() {
    switch (Peek()) {
      case '\\':
        return Escape(/*in_class=*/false);
      case '[':
        return Class();
      case '(':
        return Group();
      case '{':
        return Interval();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  absl::Status Group() {
    if (Peek(1) != '?') {
      Copy(1);
      return absl::OkStatus();
    }
    // Ruby's (?m) lets the dot match newlines, which PCRE2 calls (?s).
    for (const absl::string_view known :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)", "(?-i:"}) {
      if (in_.substr(at_, known.size()) == known) {
        Copy(known.size());
        return absl::OkStatus();
      }
    }
    return Unsupported("this group");
  }

  absl::Status Interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) ++end;
    const bool is_interval = end < in_.size() && in_[end] == '}' && end > at_ + 1;
    if (is_interval && Peek(1) == ',') return Unsupported("an interval without a lower bound");
    if (is_interval && end + 1 < in_.size() && in_[end + 1] == '+') {
      // Ruby repeats the interval, PCRE2 makes it possessive.
      return Unsupported("a '+' after an interval");
    }
    Copy(is_interval ? end + 1 - at_ : 1);
    return absl::OkStatus();
  }

  absl::Status Class() {
    Copy(1);
    if (Peek() == '^') Copy(1);
    if (Peek() == ']') return Unsupported("an unescaped ']' at the start of a class");
    while (Peek() != ']') {
      if (at_ >= in_.size()) return Unsupported("the end inside a class");
      if (Peek() == '[') return Unsupported("a class within a class");
      if (Peek() == '&' && Peek(1) == '&') return Unsupported("a class intersection");
      if (Peek() == '\\') {
        ALUDEL_RETURN_IF_ERROR(Escape(/*in_class=*/true));
      } else {
        Copy(1);
      }
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape(bool in_class) {
    const char letter = Peek(1);
    switch (letter) {
      case 's':
        return Replace("\\p{White_Space}");
      case 'S':
        return Replace("\\P{White_Space}");
      case 'w':
        return Replace(in_class ? kWordClass : absl::StrCat("[", kWordClass, kLatin1Words, "]"));
      case 'W':
        if (in_class) return Unsupported("\\W within a class");
        return Replace(absl::StrCat("[^", kWordClass, kLatin1Words, "]"));
      case 'v':
        return Replace("\\x0b");
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        Copy(2);
        return absl::OkStatus();
      case 'A':
      case 'z':
        if (in_class)
          return Unsupported(absl::StrCat("\\", absl::string_view(&letter, 1), " within a class"));
        Copy(2);
        return absl::OkStatus();
      case 'p':
      case 'P':
        return Property();
      case 'x':
        Copy(2);
        while (Peek() == '{' || std::isxdigit(static_cast<unsigned char>(Peek())) || Peek() == '}') {
          const bool last = Peek() == '}';
          Copy(1);
          if (last) break;
        }
        return absl::OkStatus();
      case 'u':
        return UnicodeEscape();
      default:
        if (letter == '\0' || std::isalnum(static_cast<unsigned char>(letter))) {
          return Unsupported(absl::StrCat("\\", absl::string_view(&letter, 1)));
        }
        Copy(2);
        return absl::OkStatus();
    }
  }

  absl::Status Replace(absl::string_view with) {
    absl::StrAppend(&out_, with);
    at_ += 2;
    return absl::OkStatus();
  }

  absl::Status UnicodeEscape() {
    const absl::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() < 4) return Unsupported("\\u without four hexadecimal digits");
    for (const char digit : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(digit))) {
        return Unsupported("\\u without four hexadecimal digits");
      }
    }
    absl::StrAppend(&out_, "\\x{", digits, "}");
    at_ += 6;
    return absl::OkStatus();
  }

  // General categories have one or two letters in both engines. Longer names are scripts, except for the
  // binary properties that both know under the same name.
  absl::Status Property() {
    if (Peek(2) != '{') return Unsupported("a property without braces");
    const size_t close = in_.find('}', at_);
    if (close == absl::string_view::npos) return Unsupported("a property without its closing brace");
    absl::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool negated = absl::string_view(name).substr(0, 1) == "^";
    if (negated) name.remove_prefix(1);
    const bool is_script = name.size() > 2 && name != "Alphabetic" && name != "White_Space" &&
                           name != "Uppercase" && name != "Lowercase" && name != "Any" && name != "Emoji";
    absl::StrAppend(&out_, in_.substr(at_, 2), "{", negated ? "^" : "", is_script ? "sc:" : "", name, "}");
    at_ = close + 1;
    return absl::OkStatus();
  }

  absl::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace aludel
