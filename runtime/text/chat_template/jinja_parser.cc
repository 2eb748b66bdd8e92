#include "runtime/text/chat_template/jinja_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_cursor.h"
#include "runtime/text/chat_template/jinja_expressions.h"
#include "runtime/text/chat_template/jinja_lexer.h"

namespace aludel {
namespace {

using StatementOr = absl::StatusOr<std::unique_ptr<JinjaStatement>>;
using Token = JinjaToken::Kind;

constexpr int kMaxStatementDepth = 60;

class Statements {
 public:
  explicit Statements(std::vector<JinjaToken> tokens) : at_(std::move(tokens)), expressions_(at_) {}

  // Up to a tag with one of these names, or all where there are none.
  absl::StatusOr<JinjaBody> Body(std::initializer_list<absl::string_view> ends);

 private:
  StatementOr Statement();
  StatementOr If();
  StatementOr For();
  StatementOr Set();
  StatementOr Macro();
  StatementOr CallBlock();
  StatementOr With();
  absl::Status Parameters(JinjaStatement* statement);
  absl::Status End(absl::string_view name) {
    if (!at_.SkipName(name)) return at_.Fail(name);
    return at_.Expect(Token::kTagEnd, "%}");
  }

  JinjaCursor at_;
  JinjaExpressions expressions_;
  int loops_ = 0;
};

absl::StatusOr<JinjaBody> Statements::Body(std::initializer_list<absl::string_view> ends) {
  ALUDEL_RETURN_IF_ERROR(at_.Enter(kMaxStatementDepth, "statements nest"));
  JinjaBody body;
  while (!at_.At(Token::kEnd)) {
    auto statement = std::make_unique<JinjaStatement>();
    statement->line = at_.Peek().line;
    if (at_.At(Token::kText)) {
      statement->text = at_.Next().text;
    } else if (at_.At(Token::kOutputBegin)) {
      at_.Skip();
      statement->kind = JinjaStatement::Kind::kOutput;
      ALUDEL_ASSIGN_OR_RETURN(statement->expression,
                              expressions_.Tuple(/*explicit_parentheses=*/false, true));
      if (!at_.At(Token::kOutputEnd)) return at_.Fail("}}");
      at_.Skip();
    } else {
      at_.Skip();  // {%
      if (std::any_of(ends.begin(), ends.end(), [&](absl::string_view end) { return at_.AtName(end); })) {
        at_.Leave();
        return body;
      }
      ALUDEL_ASSIGN_OR_RETURN(statement, Statement());
    }
    body.push_back(std::move(statement));
  }
  if (ends.size() > 0) return at_.Fail(absl::StrCat("{% ", *(ends.end() - 1), " %}"));
  at_.Leave();
  return body;
}

StatementOr Statements::Statement() {
  const int line = at_.Peek().line;
  if (at_.AtName("if")) return If();
  if (at_.AtName("for")) return For();
  if (at_.AtName("set")) return Set();
  if (at_.AtName("macro")) return Macro();
  if (at_.AtName("call")) return CallBlock();
  if (at_.AtName("with")) return With();
  auto statement = std::make_unique<JinjaStatement>();
  statement->line = line;
  if (at_.AtName("break") || at_.AtName("continue")) {
    if (loops_ == 0) return JinjaError(line, absl::StrCat("'", at_.Peek().text, "' stands outside a loop"));
    statement->kind = at_.AtName("break") ? JinjaStatement::Kind::kBreak : JinjaStatement::Kind::kContinue;
    at_.Skip();
    ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
    return statement;
  }
  if (at_.SkipName("generation")) {
    statement->kind = JinjaStatement::Kind::kBody;
    ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
    ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endgeneration"}));
    ALUDEL_RETURN_IF_ERROR(End("endgeneration"));
    return statement;
  }
  if (at_.SkipName("filter")) {
    statement->kind = JinjaStatement::Kind::kFilterBlock;
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, expressions_.BlockFilters());
    ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
    ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endfilter"}));
    ALUDEL_RETURN_IF_ERROR(End("endfilter"));
    return statement;
  }
  return at_.Fail("if, for, set, macro, call, with, filter, generation, break or continue");
}

StatementOr Statements::If() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kIf;
  statement->line = at_.Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->expression, expressions_.Tuple(/*explicit_parentheses=*/false, false));
  ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"elif", "else", "endif"}));
  if (at_.AtName("elif")) {
    // An elif is an if of its own in the other branch; it reads the endif.
    ALUDEL_RETURN_IF_ERROR(at_.Enter(kMaxStatementDepth, "statements nest"));
    ALUDEL_ASSIGN_OR_RETURN(auto other, If());
    at_.Leave();
    statement->otherwise.push_back(std::move(other));
    return statement;
  }
  if (at_.SkipName("else")) {
    ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
    ALUDEL_ASSIGN_OR_RETURN(statement->otherwise, Body({"endif"}));
  }
  ALUDEL_RETURN_IF_ERROR(End("endif"));
  return statement;
}

StatementOr Statements::For() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kFor;
  statement->line = at_.Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->target, expressions_.Target());
  if (!at_.SkipName("in")) return at_.Fail("'in'");
  ALUDEL_ASSIGN_OR_RETURN(statement->expression, expressions_.Tuple(/*explicit_parentheses=*/false, false));
  if (at_.SkipName("if")) {
    ALUDEL_ASSIGN_OR_RETURN(statement->condition, expressions_.Expression());
  }
  if (at_.AtName("recursive")) return at_.Fail("%} (recursive loops are not supported)");
  ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
  ++loops_;
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"else", "endfor"}));
  --loops_;
  if (at_.SkipName("else")) {
    ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
    ALUDEL_ASSIGN_OR_RETURN(statement->otherwise, Body({"endfor"}));
  }
  ALUDEL_RETURN_IF_ERROR(End("endfor"));
  return statement;
}

StatementOr Statements::Set() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->line = at_.Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->target, expressions_.Target());
  if (at_.SkipOperator("=")) {
    statement->kind = JinjaStatement::Kind::kSet;
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, expressions_.Tuple(/*explicit_parentheses=*/false, true));
    ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
    return statement;
  }
  statement->kind = JinjaStatement::Kind::kSetBlock;
  if (at_.SkipOperator("|")) {
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, expressions_.BlockFilters());
  }
  ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endset"}));
  ALUDEL_RETURN_IF_ERROR(End("endset"));
  return statement;
}

absl::Status Statements::Parameters(JinjaStatement* statement) {
  ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator("("));
  while (!at_.AtOperator(")")) {
    ALUDEL_ASSIGN_OR_RETURN(std::string name, at_.ExpectName());
    statement->names.push_back(std::move(name));
    if (at_.SkipOperator("=")) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, expressions_.Expression());
      statement->expressions.push_back(std::move(value));
    } else if (!statement->expressions.empty()) {
      return at_.Fail("a default value");
    }
    if (!at_.SkipOperator(",")) break;
  }
  return at_.ExpectOperator(")");
}

StatementOr Statements::Macro() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kMacro;
  statement->line = at_.Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->text, at_.ExpectName());
  ALUDEL_RETURN_IF_ERROR(Parameters(statement.get()));
  ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
  const int loops = std::exchange(loops_, 0);
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endmacro"}));
  loops_ = loops;
  ALUDEL_RETURN_IF_ERROR(End("endmacro"));
  return statement;
}

StatementOr Statements::CallBlock() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kCallBlock;
  statement->line = at_.Next().line;
  if (at_.AtOperator("(")) ALUDEL_RETURN_IF_ERROR(Parameters(statement.get()));
  ALUDEL_ASSIGN_OR_RETURN(statement->expression, expressions_.Expression());
  if (statement->expression->kind != JinjaExpression::Kind::kCall) {
    return JinjaError(statement->line, "{% call %} wants a call");
  }
  ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
  const int loops = std::exchange(loops_, 0);
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endcall"}));
  loops_ = loops;
  ALUDEL_RETURN_IF_ERROR(End("endcall"));
  return statement;
}

StatementOr Statements::With() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kWith;
  statement->line = at_.Next().line;
  while (!at_.At(Token::kTagEnd)) {
    ALUDEL_ASSIGN_OR_RETURN(std::string name, at_.ExpectName());
    ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator("="));
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, expressions_.Expression());
    statement->names.push_back(std::move(name));
    statement->expressions.push_back(std::move(value));
    if (!at_.SkipOperator(",")) break;
  }
  ALUDEL_RETURN_IF_ERROR(at_.Expect(Token::kTagEnd, "%}"));
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endwith"}));
  ALUDEL_RETURN_IF_ERROR(End("endwith"));
  return statement;
}

}  // namespace

absl::StatusOr<JinjaBody> ParseJinja(absl::string_view source) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, LexJinja(source));
  return Statements(std::move(tokens)).Body({});
}

}  // namespace aludel
