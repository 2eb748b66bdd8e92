#include "runtime/text/chat_template/jinja_expressions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"

namespace aludel {
namespace {

using Kind = JinjaExpression::Kind;
using ExpressionOr = JinjaExpressions::ExpressionOr;
using Token = JinjaToken::Kind;

constexpr int kMaxExpressionDepth = 150;

}  // namespace

template <typename... Children>
ExpressionOr JinjaExpressions::Make(Kind kind, int line, Children... children) {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = kind;
  node->line = line;
  (node->children.push_back(std::move(children)), ...);
  return Finish(std::move(node));
}

ExpressionOr JinjaExpressions::Finish(JinjaExpressionPtr node) {
  for (const JinjaExpressionPtr& child : node->children) {
    if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  }
  if (node->depth > kMaxExpressionDepth) return JinjaError(node->line, "an expression nests too deep");
  return node;
}

bool JinjaExpressions::AtTupleEnd() const {
  return at_.At(Token::kOutputEnd) || at_.At(Token::kTagEnd) || at_.AtOperator(")");
}

ExpressionOr JinjaExpressions::Expression() {
  ALUDEL_RETURN_IF_ERROR(at_.Enter(kMaxExpressionDepth, "an expression nests"));
  ExpressionOr result = Conditional();
  at_.Leave();
  return result;
}

ExpressionOr JinjaExpressions::BlockFilters() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr first, Filter(nullptr));
  return Filters(std::move(first));
}

ExpressionOr JinjaExpressions::Conditional() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, Or());
  while (at_.AtName("if")) {
    const int line = at_.Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr condition, Or());
    JinjaExpressionPtr other;
    if (at_.SkipName("else")) {
      ALUDEL_ASSIGN_OR_RETURN(other, Expression());
    }
    ALUDEL_ASSIGN_OR_RETURN(
        value, Make(Kind::kConditional, line, std::move(condition), std::move(value), std::move(other)));
  }
  return value;
}

ExpressionOr JinjaExpressions::Or() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, And());
  while (at_.AtName("or")) {
    const int line = at_.Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, And());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kOr, line, std::move(left), std::move(right)));
  }
  return left;
}

ExpressionOr JinjaExpressions::And() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Not());
  while (at_.AtName("and")) {
    const int line = at_.Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Not());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kAnd, line, std::move(left), std::move(right)));
  }
  return left;
}

ExpressionOr JinjaExpressions::Not() {
  if (!at_.AtName("not")) return Compare();
  ALUDEL_RETURN_IF_ERROR(at_.Enter(kMaxExpressionDepth, "an expression nests"));
  const int line = at_.Next().line;
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Not());
  at_.Leave();
  return Make(Kind::kNot, line, std::move(operand));
}

ExpressionOr JinjaExpressions::Compare() {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kCompare;
  node->line = at_.Peek().line;
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr first, Sum());
  node->children.push_back(std::move(first));
  while (true) {
    std::string name;
    for (const absl::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
      if (at_.AtOperator(known)) name = std::string(known);
    }
    if (at_.AtName("in")) name = "in";
    if (at_.AtName("not") && at_.AtName("in", 1)) {
      name = "not in";
      at_.Skip();
    }
    if (name.empty()) break;
    at_.Skip();
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Sum());
    node->names.push_back(std::move(name));
    node->children.push_back(std::move(operand));
  }
  if (node->names.empty()) return std::move(node->children[0]);
  return Finish(std::move(node));
}

ExpressionOr JinjaExpressions::Sum() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Concat());
  while (at_.AtOperator("+") || at_.AtOperator("-")) {
    const JinjaToken token = at_.Next();
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Concat());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kArithmetic, token.line, std::move(left), std::move(right)));
    left->name = token.text;
  }
  return left;
}

ExpressionOr JinjaExpressions::Concat() {
  const int line = at_.Peek().line;
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr first, Product());
  if (!at_.AtOperator("~")) return first;
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kConcat;
  node->line = line;
  node->children.push_back(std::move(first));
  while (at_.SkipOperator("~")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Product());
    node->children.push_back(std::move(operand));
  }
  return Finish(std::move(node));
}

ExpressionOr JinjaExpressions::Product() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Power());
  while (at_.AtOperator("*") || at_.AtOperator("/") || at_.AtOperator("//") || at_.AtOperator("%")) {
    const JinjaToken token = at_.Next();
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Power());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kArithmetic, token.line, std::move(left), std::move(right)));
    left->name = token.text;
  }
  return left;
}

ExpressionOr JinjaExpressions::Power() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Unary(/*with_filter=*/true));
  while (at_.AtOperator("**")) {
    const int line = at_.Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Unary(/*with_filter=*/true));
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kArithmetic, line, std::move(left), std::move(right)));
    left->name = "**";
  }
  return left;
}

ExpressionOr JinjaExpressions::Unary(bool with_filter) {
  JinjaExpressionPtr node;
  if (at_.AtOperator("-") || at_.AtOperator("+")) {
    ALUDEL_RETURN_IF_ERROR(at_.Enter(kMaxExpressionDepth, "an expression nests"));
    const JinjaToken token = at_.Next();
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Unary(/*with_filter=*/false));
    at_.Leave();
    ALUDEL_ASSIGN_OR_RETURN(
        node, Make(token.text == "-" ? Kind::kNegative : Kind::kPositive, token.line, std::move(operand)));
  } else {
    ALUDEL_ASSIGN_OR_RETURN(node, Primary());
  }
  ALUDEL_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
  if (!with_filter) return node;
  return Filters(std::move(node));
}

ExpressionOr JinjaExpressions::Primary() {
  const JinjaToken& token = at_.Peek();
  auto node = std::make_unique<JinjaExpression>();
  node->line = token.line;
  switch (token.kind) {
    case Token::kName:
      at_.Skip();
      if (token.text == "true" || token.text == "True") {
        node->constant = JinjaValue::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = JinjaValue::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        node->constant = JinjaValue::None();
      } else {
        node->kind = Kind::kName;
        node->name = token.text;
      }
      return node;
    case Token::kString: {
      std::string text;
      while (at_.At(Token::kString)) text += at_.Next().text;
      node->constant = JinjaValue::String(std::move(text));
      return node;
    }
    case Token::kInteger: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(token.text, &value)) return at_.Fail("an integer of 64 bits");
      at_.Skip();
      node->constant = JinjaValue::Int(value);
      return node;
    }
    case Token::kFloat: {
      double value = 0.0;
      if (!absl::SimpleAtod(token.text, &value)) return at_.Fail("a number");
      at_.Skip();
      node->constant = JinjaValue::Float(value);
      return node;
    }
    case Token::kOperator: {
      if (token.text == "[") return List();
      if (token.text == "{") return Dict();
      if (token.text != "(") break;
      at_.Skip();
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr inner, Tuple(/*explicit_parentheses=*/true, true));
      ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator(")"));
      return inner;
    }
    default:
      break;
  }
  return at_.Fail("an expression");
}

ExpressionOr JinjaExpressions::Tuple(bool explicit_parentheses, bool with_conditional) {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kTuple;
  node->line = at_.Peek().line;
  bool is_tuple = false;
  while (!AtTupleEnd()) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr item, with_conditional ? Expression() : Or());
    node->children.push_back(std::move(item));
    if (!at_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && node->children.size() == 1) return std::move(node->children[0]);
  if (!is_tuple && !explicit_parentheses) return at_.Fail("an expression");
  return Finish(std::move(node));
}

ExpressionOr JinjaExpressions::List() {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kList;
  node->line = at_.Next().line;
  while (!at_.AtOperator("]")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr item, Expression());
    node->children.push_back(std::move(item));
    if (!at_.SkipOperator(",")) break;
  }
  ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator("]"));
  return Finish(std::move(node));
}

ExpressionOr JinjaExpressions::Dict() {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kDict;
  node->line = at_.Next().line;
  while (!at_.AtOperator("}")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr key, Expression());
    ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator(":"));
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, Expression());
    node->children.push_back(std::move(key));
    node->children.push_back(std::move(value));
    if (!at_.SkipOperator(",")) break;
  }
  ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator("}"));
  return Finish(std::move(node));
}

ExpressionOr JinjaExpressions::Postfix(JinjaExpressionPtr node) {
  while (true) {
    if (at_.AtOperator(".") || at_.AtOperator("[")) {
      ALUDEL_ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (at_.AtOperator("(")) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr call, Make(Kind::kCall, at_.Peek().line, std::move(node)));
      ALUDEL_RETURN_IF_ERROR(Arguments(call.get()));
      ALUDEL_ASSIGN_OR_RETURN(node, Finish(std::move(call)));
    } else {
      return node;
    }
  }
}

ExpressionOr JinjaExpressions::Subscript(JinjaExpressionPtr node) {
  const JinjaToken opening = at_.Next();
  if (opening.text == ".") {
    if (at_.At(Token::kInteger)) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr index, Primary());
      return Make(Kind::kItem, opening.line, std::move(node), std::move(index));
    }
    ALUDEL_ASSIGN_OR_RETURN(std::string name, at_.ExpectName());
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr result, Make(Kind::kAttribute, opening.line, std::move(node)));
    result->name = std::move(name);
    return result;
  }
  JinjaExpressionPtr parts[3];
  int colons = 0;
  while (!at_.AtOperator("]")) {
    if (at_.SkipOperator(":")) {
      if (++colons > 2) return at_.Fail("']'");
      continue;
    }
    if (parts[colons] != nullptr) return at_.Fail("':' or ']'");
    ALUDEL_ASSIGN_OR_RETURN(parts[colons], Expression());
  }
  ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator("]"));
  if (colons > 0) {
    return Make(Kind::kSlice, opening.line, std::move(node), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }
  if (parts[0] == nullptr) return at_.Fail("a subscript");
  return Make(Kind::kItem, opening.line, std::move(node), std::move(parts[0]));
}

absl::Status JinjaExpressions::Arguments(JinjaExpression* call) {
  ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator("("));
  while (!at_.AtOperator(")")) {
    if (at_.At(Token::kName) && at_.AtOperator("=", 1)) {
      call->names.push_back(at_.Next().text);
      at_.Skip();
    } else if (!call->names.empty()) {
      return at_.Fail("a named argument");
    }
    if (at_.AtOperator("*") || at_.AtOperator("**")) return at_.Fail("an argument that is not unpacked");
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr argument, Expression());
    call->children.push_back(std::move(argument));
    if (!at_.SkipOperator(",")) break;
  }
  return at_.ExpectOperator(")");
}

ExpressionOr JinjaExpressions::Filters(JinjaExpressionPtr node) {
  while (true) {
    if (at_.AtOperator("|")) {
      at_.Skip();
      ALUDEL_ASSIGN_OR_RETURN(node, Filter(std::move(node)));
    } else if (at_.AtName("is")) {
      ALUDEL_ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (at_.AtOperator("(")) {
      ALUDEL_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionOr JinjaExpressions::Filter(JinjaExpressionPtr node) {
  const int line = at_.Peek().line;
  ALUDEL_ASSIGN_OR_RETURN(std::string name, at_.ExpectName());
  if (!IsJinjaFilter(name)) return JinjaError(line, absl::StrCat("filter '", name, "' is not supported"));
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr filter, Make(Kind::kFilter, line, std::move(node)));
  filter->name = std::move(name);
  if (at_.AtOperator("(")) ALUDEL_RETURN_IF_ERROR(Arguments(filter.get()));
  return Finish(std::move(filter));
}

ExpressionOr JinjaExpressions::Test(JinjaExpressionPtr node) {
  const int line = at_.Next().line;
  const bool negated = at_.SkipName("not");
  ALUDEL_ASSIGN_OR_RETURN(std::string name, at_.ExpectName());
  if (!IsJinjaTest(name)) return JinjaError(line, absl::StrCat("test '", name, "' is not supported"));
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr test, Make(Kind::kTest, line, std::move(node)));
  test->name = std::move(name);
  const Token next = at_.Peek().kind;
  const bool has_operand =
      next == Token::kString || next == Token::kInteger || next == Token::kFloat || at_.AtOperator("[") ||
      at_.AtOperator("{") ||
      (next == Token::kName && !at_.AtName("else") && !at_.AtName("or") && !at_.AtName("and"));
  if (at_.AtName("is")) return at_.Fail("no second test");
  if (at_.AtOperator("(")) {
    ALUDEL_RETURN_IF_ERROR(Arguments(test.get()));
  } else if (has_operand && !at_.AtName("if") && !at_.AtName("in") && !at_.AtName("not")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Primary());
    ALUDEL_ASSIGN_OR_RETURN(operand, Postfix(std::move(operand)));
    test->children.push_back(std::move(operand));
  }
  ALUDEL_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!negated) return test;
  return Make(Kind::kNot, line, std::move(test));
}

ExpressionOr JinjaExpressions::Target() {
  auto tuple = std::make_unique<JinjaExpression>();
  tuple->kind = Kind::kTuple;
  tuple->line = at_.Peek().line;
  bool is_tuple = false;
  do {
    if (at_.AtName("in") || at_.AtOperator("=")) break;  // after a trailing comma
    JinjaExpressionPtr item;
    if (at_.SkipOperator("(")) {
      ALUDEL_RETURN_IF_ERROR(at_.Enter(kMaxExpressionDepth, "an expression nests"));
      ALUDEL_ASSIGN_OR_RETURN(item, Target());
      at_.Leave();
      ALUDEL_RETURN_IF_ERROR(at_.ExpectOperator(")"));
    } else {
      const int line = at_.Peek().line;
      ALUDEL_ASSIGN_OR_RETURN(std::string name, at_.ExpectName());
      ALUDEL_ASSIGN_OR_RETURN(item, Make(Kind::kName, line));
      item->name = std::move(name);
      if (at_.SkipOperator(".")) {
        ALUDEL_ASSIGN_OR_RETURN(std::string attribute, at_.ExpectName());
        ALUDEL_ASSIGN_OR_RETURN(item, Make(Kind::kAttribute, line, std::move(item)));
        item->name = std::move(attribute);
      }
    }
    tuple->children.push_back(std::move(item));
    if (at_.AtOperator(",")) is_tuple = true;
  } while (at_.SkipOperator(","));
  if (tuple->children.empty()) return at_.Fail("a name");
  if (!is_tuple) return std::move(tuple->children[0]);
  return Finish(std::move(tuple));
}

}  // namespace aludel
