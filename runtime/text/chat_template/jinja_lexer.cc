#include "runtime/text/chat_template/jinja_lexer.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_literals.h"
#include "runtime/text/chat_template/jinja_value.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using TokenKind = JinjaToken::Kind;

constexpr size_t kMaxTokens = 200'000;

std::string NormalizeNewlines(absl::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') continue;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (absl::EndsWith(text, "\n")) text.pop_back();
  return text;
}

size_t SkipSpace(absl::string_view text, size_t at) {
  for (size_t next = at; next < text.size(); at = next) {
    if (!IsPythonSpace(NextCodePoint(text, &next))) break;
  }
  return at;
}

absl::string_view StripRight(absl::string_view text) {
  size_t end = text.size();
  for (size_t next = end; next > 0; end = next) {
    if (!IsPythonSpace(PreviousCodePoint(text, &next))) break;
  }
  return text.substr(0, end);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(NormalizeNewlines(source)), in_(source_) {}

  absl::StatusOr<std::vector<JinjaToken>> Run() {
    while (at_ < in_.size()) {
      ALUDEL_RETURN_IF_ERROR(TextAndOpening());
      if (tokens_.size() > kMaxTokens) return JinjaError(line_, "the template is longer than is read");
    }
    Emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Emit(TokenKind kind, absl::string_view text) { tokens_.push_back({kind, std::string(text), line_}); }
  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(in_.begin() + at_, in_.begin() + to, '\n'));
    at_ = to;
  }

  // Text up to the next tag, then that tag.
  absl::Status TextAndOpening() {
    size_t open = at_;
    while (true) {
      open = in_.find('{', open);
      if (open == absl::string_view::npos || open + 1 >= in_.size()) {
        EmitText(in_.substr(at_));
        Advance(in_.size());
        return absl::OkStatus();
      }
      const char kind = in_[open + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++open;
    }
    const char kind = in_[open + 1];
    size_t inside = open + 2;
    const char sign = inside < in_.size() && (in_[inside] == '-' || in_[inside] == '+') ? in_[inside] : ' ';
    if (sign != ' ') ++inside;
    EmitText(TrimBeforeTag(in_.substr(at_, open - at_), sign, kind != '{'));
    Advance(inside);
    if (kind == '#') return Comment();
    if (kind == '%' && IsRaw()) return Raw();
    Emit(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kTagBegin, "");
    return Inside(kind == '{');
  }

  absl::string_view TrimBeforeTag(absl::string_view text, char sign, bool is_block) const {
    if (sign == '-') return StripRight(text);
    if (sign == '+' || !is_block) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == absl::string_view::npos ? 0 : newline + 1;
    if (newline == absl::string_view::npos && !line_starting_) return text;
    return SkipSpace(text, line_begin) == text.size() ? text.substr(0, line_begin) : text;
  }

  void EmitText(absl::string_view text) {
    if (!text.empty()) Emit(TokenKind::kText, text);
  }

  // Moves past a closing "X}" at `close`, its sign (if any) just before it, and the white space that goes
  // with it.
  void Close(size_t close, char sign, bool trims_newline) {
    size_t end = close + 2;
    if (sign == '-') {
      end = SkipSpace(in_, end);
    } else if (sign != '+' && trims_newline && end < in_.size() && in_[end] == '\n') {
      ++end;
    }
    Advance(end);
    line_starting_ = in_[end - 1] == '\n';
  }

  char SignBefore(size_t close) const {
    const char sign = close > at_ ? in_[close - 1] : ' ';
    return sign == '-' || sign == '+' ? sign : ' ';
  }

  absl::Status Comment() {
    const size_t close = in_.find("#}", at_);
    if (close == absl::string_view::npos) return JinjaError(line_, "a comment has no end");
    Close(close, SignBefore(close), /*trims_newline=*/true);
    return absl::OkStatus();
  }

  // Whether the tag that starts here is {% raw %}; moves into its text if so.
  bool IsRaw() {
    size_t end = SkipSpace(in_, at_);
    if (in_.substr(end, 3) != "raw") return false;
    end = SkipSpace(in_, end + 3);
    const bool strips = in_.substr(end, 1) == "-";
    if (in_.substr(end + strips, 2) != "%}") return false;
    end += strips + 2;
    Advance(strips ? SkipSpace(in_, end) : end);
    return true;
  }

  absl::Status Raw() {
    for (size_t open = in_.find("{%", at_); open != absl::string_view::npos;
         open = in_.find("{%", open + 2)) {
      size_t end = open + 2;
      const char sign = end < in_.size() && (in_[end] == '-' || in_[end] == '+') ? in_[end] : ' ';
      end = SkipSpace(in_, sign == ' ' ? end : end + 1);
      if (in_.substr(end, 6) != "endraw") continue;
      end = SkipSpace(in_, end + 6);
      const char end_sign = in_.substr(end, 1) == "-" ? '-' : in_.substr(end, 1) == "+" ? '+' : ' ';
      if (end_sign != ' ') ++end;
      if (in_.substr(end, 2) != "%}") continue;
      line_starting_ = false;
      EmitText(TrimBeforeTag(in_.substr(at_, open - at_), sign, /*is_block=*/true));
      Close(end, end_sign, /*trims_newline=*/true);
      return absl::OkStatus();
    }
    return JinjaError(line_, "a raw block has no end");
  }

  // The tokens of one {{ ... }} or {% ... %}. An end sign inside brackets is two operators.
  absl::Status Inside(bool is_output) {
    const absl::string_view end = is_output ? "}}" : "%}";
    std::string open_brackets;
    while (true) {
      const size_t start = SkipSpace(in_, at_);
      Advance(start);
      if (at_ >= in_.size()) return JinjaError(line_, "a tag has no end");
      const char c = in_[at_];
      const bool has_sign = c == '-' || (c == '+' && !is_output);
      if (open_brackets.empty() && in_.substr(at_ + has_sign, 2) == end) {
        const size_t close = at_ + has_sign;
        Emit(is_output ? TokenKind::kOutputEnd : TokenKind::kTagEnd, "");
        Close(close, has_sign ? c : ' ', /*trims_newline=*/!is_output);
        return absl::OkStatus();
      }
      if (tokens_.size() > kMaxTokens) return JinjaError(line_, "the template is longer than is read");
      if (IsDigit(c)) {
        const JinjaNumber number = ReadJinjaNumber(in_, at_);
        Emit(number.is_float ? TokenKind::kFloat : TokenKind::kInteger, number.digits);
        Advance(number.end);
      } else if (IsNameStart(c)) {
        size_t stop = at_;
        while (stop < in_.size() && (IsNameStart(in_[stop]) || IsDigit(in_[stop]))) ++stop;
        Emit(TokenKind::kName, in_.substr(at_, stop - at_));
        Advance(stop);
      } else if (c == '"' || c == '\'') {
        size_t behind = at_;
        ALUDEL_ASSIGN_OR_RETURN(const std::string text, ReadJinjaString(in_, line_, &behind));
        Emit(TokenKind::kString, text);
        Advance(behind);
      } else {
        ALUDEL_RETURN_IF_ERROR(Operator(&open_brackets));
      }
    }
  }

  absl::Status Operator(std::string* open_brackets) {
    for (const absl::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (in_.substr(at_, 2) != two) continue;
      Emit(TokenKind::kOperator, two);
      Advance(at_ + 2);
      return absl::OkStatus();
    }
    const char c = in_[at_];
    if (absl::string_view("+-/*%~[](){}><=.:|,").find(c) == absl::string_view::npos) {
      return JinjaError(line_, absl::StrCat("unexpected character '", in_.substr(at_, 1), "'"));
    }
    if (c == '(' || c == '[' || c == '{') open_brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open_brackets->empty() || open_brackets->back() != c) {
        return JinjaError(line_, absl::StrCat("unexpected '", in_.substr(at_, 1), "'"));
      }
      open_brackets->pop_back();
    }
    Emit(TokenKind::kOperator, in_.substr(at_, 1));
    Advance(at_ + 1);
    return absl::OkStatus();
  }

  std::string source_;
  absl::string_view in_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a newline, or there was none
  std::vector<JinjaToken> tokens_;
};

}  // namespace

absl::Status JinjaError(int line, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("chat template line ", line, ": ", message));
}

absl::StatusOr<std::vector<JinjaToken>> LexJinja(absl::string_view source) {
  if (const size_t invalid = FirstInvalidUtf8(source); invalid != source.size()) {
    return absl::InvalidArgumentError(absl::StrCat("chat template is not UTF-8 at byte ", invalid));
  }
  return Lexer(source).Run();
}

}  // namespace aludel
