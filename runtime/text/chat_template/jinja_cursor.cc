#include "runtime/text/chat_template/jinja_cursor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

using Token = JinjaToken::Kind;

JinjaCursor::JinjaCursor(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

const JinjaToken& JinjaCursor::Peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

const JinjaToken& JinjaCursor::Next() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }

bool JinjaCursor::AtName(absl::string_view name, size_t ahead) const {
  return Peek(ahead).kind == Token::kName && Peek(ahead).text == name;
}

bool JinjaCursor::AtOperator(absl::string_view text, size_t ahead) const {
  return Peek(ahead).kind == Token::kOperator && Peek(ahead).text == text;
}

bool JinjaCursor::SkipName(absl::string_view name) { return AtName(name) && (++at_, true); }

bool JinjaCursor::SkipOperator(absl::string_view text) { return AtOperator(text) && (++at_, true); }

absl::Status JinjaCursor::Fail(absl::string_view expected) const {
  const JinjaToken& token = Peek();
  const char* const kNames[] = {"text", "{{", "}}", "{%", "%}", "", "a string", "", "", "", "the end"};
  const char* name = kNames[static_cast<int>(token.kind)];
  return JinjaError(
      token.line,
      absl::StrCat("found ", *name != '\0' ? name : absl::StrCat("'", token.text, "'"), ", want ", expected));
}

absl::Status JinjaCursor::Expect(Token kind, absl::string_view name) {
  if (!At(kind)) return Fail(name);
  ++at_;
  return absl::OkStatus();
}

absl::Status JinjaCursor::ExpectOperator(absl::string_view text) {
  return SkipOperator(text) ? absl::OkStatus() : Fail(absl::StrCat("'", text, "'"));
}

absl::StatusOr<std::string> JinjaCursor::ExpectName() {
  if (!At(Token::kName)) return Fail("a name");
  return Next().text;
}

absl::Status JinjaCursor::Enter(int most, absl::string_view what) {
  if (++depth_ <= most) return absl::OkStatus();
  return JinjaError(Peek().line, absl::StrCat(what, " too deep"));
}

}  // namespace aludel
