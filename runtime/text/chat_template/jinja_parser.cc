#include "runtime/text/chat_template/jinja_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_lexer.h"

namespace aludel {
namespace {

using Kind = JinjaExpression::Kind;
using ExpressionOr = absl::StatusOr<JinjaExpressionPtr>;
using StatementOr = absl::StatusOr<std::unique_ptr<JinjaStatement>>;
using Token = JinjaToken::Kind;

constexpr int kMaxExpressionDepth = 150;
constexpr int kMaxStatementDepth = 60;

class Parser {
 public:
  explicit Parser(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<JinjaBody> Run() {
    ALUDEL_ASSIGN_OR_RETURN(JinjaBody body, Body({}));
    return body;
  }

 private:
  // Tokens.
  const JinjaToken& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const JinjaToken& Next() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }
  bool AtName(absl::string_view name, size_t ahead = 0) const {
    return Peek(ahead).kind == Token::kName && Peek(ahead).text == name;
  }
  bool AtOperator(absl::string_view text, size_t ahead = 0) const {
    return Peek(ahead).kind == Token::kOperator && Peek(ahead).text == text;
  }
  bool SkipName(absl::string_view name) { return AtName(name) && (++at_, true); }
  bool SkipOperator(absl::string_view text) { return AtOperator(text) && (++at_, true); }
  absl::Status Fail(absl::string_view expected) const {
    const JinjaToken& token = Peek();
    const char* const kNames[] = {"text", "{{", "}}", "{%", "%}", "", "a string", "", "", "", "the end"};
    const char* name = kNames[static_cast<int>(token.kind)];
    return JinjaError(token.line,
                      absl::StrCat("found ", *name != '\0' ? name : absl::StrCat("'", token.text, "'"),
                                   ", want ", expected));
  }
  absl::Status ExpectOperator(absl::string_view text) {
    return SkipOperator(text) ? absl::OkStatus() : Fail(absl::StrCat("'", text, "'"));
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Peek().kind != Token::kName) return Fail("a name");
    return Next().text;
  }
  absl::Status ExpectTagEnd() {
    if (Peek().kind != Token::kTagEnd) return Fail("%}");
    ++at_;
    return absl::OkStatus();
  }

  // Expressions.
  template <typename... Children>
  ExpressionOr Make(Kind kind, int line, Children... children) {
    auto node = std::make_unique<JinjaExpression>();
    node->kind = kind;
    node->line = line;
    (node->children.push_back(std::move(children)), ...);
    return Finish(std::move(node));
  }
  ExpressionOr Finish(JinjaExpressionPtr node) {
    for (const JinjaExpressionPtr& child : node->children) {
      if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
    }
    if (node->depth > kMaxExpressionDepth) return JinjaError(node->line, "an expression nests too deep");
    return node;
  }

  ExpressionOr Expression() {
    if (++recursion_ > kMaxExpressionDepth) return JinjaError(Peek().line, "an expression nests too deep");
    ExpressionOr result = Conditional();
    --recursion_;
    return result;
  }
  ExpressionOr Conditional();
  ExpressionOr Or();
  ExpressionOr And();
  ExpressionOr Not();
  ExpressionOr Compare();
  ExpressionOr Sum();
  ExpressionOr Concat();
  ExpressionOr Product();
  ExpressionOr Power();
  ExpressionOr Unary(bool with_filter);
  ExpressionOr Primary();
  ExpressionOr Postfix(JinjaExpressionPtr node);
  ExpressionOr Subscript(JinjaExpressionPtr node);
  ExpressionOr Filters(JinjaExpressionPtr node);
  ExpressionOr Filter(JinjaExpressionPtr node);
  ExpressionOr Test(JinjaExpressionPtr node);
  ExpressionOr Tuple(bool explicit_parentheses, bool with_conditional);
  ExpressionOr List();
  ExpressionOr Dict();
  absl::Status Arguments(JinjaExpression* call);
  bool AtTupleEnd() const {
    return Peek().kind == Token::kOutputEnd || Peek().kind == Token::kTagEnd || AtOperator(")");
  }

  // Statements.
  absl::StatusOr<JinjaBody> Body(std::initializer_list<absl::string_view> ends);
  StatementOr Statement();
  StatementOr If();
  StatementOr For();
  StatementOr Set();
  StatementOr Macro();
  StatementOr CallBlock();
  StatementOr With();
  ExpressionOr Target();
  absl::Status Parameters(JinjaStatement* statement);
  absl::Status End(absl::string_view name) {
    if (!SkipName(name)) return Fail(name);
    return ExpectTagEnd();
  }

  std::vector<JinjaToken> tokens_;
  size_t at_ = 0;
  int recursion_ = 0;
  int loops_ = 0;
};

ExpressionOr Parser::Conditional() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, Or());
  while (AtName("if")) {
    const int line = Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr condition, Or());
    JinjaExpressionPtr other;
    if (SkipName("else")) {
      ALUDEL_ASSIGN_OR_RETURN(other, Expression());
    }
    ALUDEL_ASSIGN_OR_RETURN(
        value, Make(Kind::kConditional, line, std::move(condition), std::move(value), std::move(other)));
  }
  return value;
}

ExpressionOr Parser::Or() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, And());
  while (AtName("or")) {
    const int line = Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, And());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kOr, line, std::move(left), std::move(right)));
  }
  return left;
}

ExpressionOr Parser::And() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Not());
  while (AtName("and")) {
    const int line = Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Not());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kAnd, line, std::move(left), std::move(right)));
  }
  return left;
}

ExpressionOr Parser::Not() {
  if (!AtName("not")) return Compare();
  const int line = Next().line;
  if (++recursion_ > kMaxExpressionDepth) return JinjaError(line, "an expression nests too deep");
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Not());
  --recursion_;
  return Make(Kind::kNot, line, std::move(operand));
}

ExpressionOr Parser::Compare() {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kCompare;
  node->line = Peek().line;
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr first, Sum());
  node->children.push_back(std::move(first));
  while (true) {
    std::string name;
    for (const absl::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
      if (AtOperator(known)) name = std::string(known);
    }
    if (AtName("in")) name = "in";
    if (AtName("not") && AtName("in", 1)) {
      name = "not in";
      ++at_;
    }
    if (name.empty()) break;
    ++at_;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Sum());
    node->names.push_back(std::move(name));
    node->children.push_back(std::move(operand));
  }
  if (node->names.empty()) return std::move(node->children[0]);
  return Finish(std::move(node));
}

ExpressionOr Parser::Sum() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Concat());
  while (AtOperator("+") || AtOperator("-")) {
    const JinjaToken token = Next();
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Concat());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kArithmetic, token.line, std::move(left), std::move(right)));
    left->name = token.text;
  }
  return left;
}

ExpressionOr Parser::Concat() {
  const int line = Peek().line;
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr first, Product());
  if (!AtOperator("~")) return first;
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kConcat;
  node->line = line;
  node->children.push_back(std::move(first));
  while (SkipOperator("~")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Product());
    node->children.push_back(std::move(operand));
  }
  return Finish(std::move(node));
}

ExpressionOr Parser::Product() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Power());
  while (AtOperator("*") || AtOperator("/") || AtOperator("//") || AtOperator("%")) {
    const JinjaToken token = Next();
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Power());
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kArithmetic, token.line, std::move(left), std::move(right)));
    left->name = token.text;
  }
  return left;
}

ExpressionOr Parser::Power() {
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr left, Unary(/*with_filter=*/true));
  while (AtOperator("**")) {
    const int line = Next().line;
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr right, Unary(/*with_filter=*/true));
    ALUDEL_ASSIGN_OR_RETURN(left, Make(Kind::kArithmetic, line, std::move(left), std::move(right)));
    left->name = "**";
  }
  return left;
}

ExpressionOr Parser::Unary(bool with_filter) {
  JinjaExpressionPtr node;
  if (AtOperator("-") || AtOperator("+")) {
    const JinjaToken token = Next();
    if (++recursion_ > kMaxExpressionDepth) return JinjaError(token.line, "an expression nests too deep");
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Unary(/*with_filter=*/false));
    --recursion_;
    ALUDEL_ASSIGN_OR_RETURN(
        node, Make(token.text == "-" ? Kind::kNegative : Kind::kPositive, token.line, std::move(operand)));
  } else {
    ALUDEL_ASSIGN_OR_RETURN(node, Primary());
  }
  ALUDEL_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
  if (!with_filter) return node;
  return Filters(std::move(node));
}

ExpressionOr Parser::Primary() {
  const JinjaToken& token = Peek();
  auto node = std::make_unique<JinjaExpression>();
  node->line = token.line;
  switch (token.kind) {
    case Token::kName:
      ++at_;
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
      while (Peek().kind == Token::kString) text += Next().text;
      node->constant = JinjaValue::String(std::move(text));
      return node;
    }
    case Token::kInteger: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(token.text, &value)) return Fail("an integer of 64 bits");
      ++at_;
      node->constant = JinjaValue::Int(value);
      return node;
    }
    case Token::kFloat: {
      double value = 0.0;
      if (!absl::SimpleAtod(token.text, &value)) return Fail("a number");
      ++at_;
      node->constant = JinjaValue::Float(value);
      return node;
    }
    case Token::kOperator: {
      if (token.text == "[") return List();
      if (token.text == "{") return Dict();
      if (token.text != "(") break;
      ++at_;
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr inner, Tuple(/*explicit_parentheses=*/true, true));
      ALUDEL_RETURN_IF_ERROR(ExpectOperator(")"));
      return inner;
    }
    default:
      break;
  }
  return Fail("an expression");
}

ExpressionOr Parser::Tuple(bool explicit_parentheses, bool with_conditional) {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kTuple;
  node->line = Peek().line;
  bool is_tuple = false;
  while (!AtTupleEnd()) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr item, with_conditional ? Expression() : Or());
    node->children.push_back(std::move(item));
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && node->children.size() == 1) return std::move(node->children[0]);
  if (!is_tuple && !explicit_parentheses) return Fail("an expression");
  return Finish(std::move(node));
}

ExpressionOr Parser::List() {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kList;
  node->line = Next().line;
  while (!AtOperator("]")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr item, Expression());
    node->children.push_back(std::move(item));
    if (!SkipOperator(",")) break;
  }
  ALUDEL_RETURN_IF_ERROR(ExpectOperator("]"));
  return Finish(std::move(node));
}

ExpressionOr Parser::Dict() {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = Kind::kDict;
  node->line = Next().line;
  while (!AtOperator("}")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr key, Expression());
    ALUDEL_RETURN_IF_ERROR(ExpectOperator(":"));
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, Expression());
    node->children.push_back(std::move(key));
    node->children.push_back(std::move(value));
    if (!SkipOperator(",")) break;
  }
  ALUDEL_RETURN_IF_ERROR(ExpectOperator("}"));
  return Finish(std::move(node));
}

ExpressionOr Parser::Postfix(JinjaExpressionPtr node) {
  while (true) {
    if (AtOperator(".") || AtOperator("[")) {
      ALUDEL_ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (AtOperator("(")) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr call, Make(Kind::kCall, Peek().line, std::move(node)));
      ALUDEL_RETURN_IF_ERROR(Arguments(call.get()));
      ALUDEL_ASSIGN_OR_RETURN(node, Finish(std::move(call)));
    } else {
      return node;
    }
  }
}

ExpressionOr Parser::Subscript(JinjaExpressionPtr node) {
  const JinjaToken opening = Next();
  if (opening.text == ".") {
    if (Peek().kind == Token::kInteger) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr index, Primary());
      return Make(Kind::kItem, opening.line, std::move(node), std::move(index));
    }
    ALUDEL_ASSIGN_OR_RETURN(std::string name, ExpectName());
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr result, Make(Kind::kAttribute, opening.line, std::move(node)));
    result->name = std::move(name);
    return result;
  }
  JinjaExpressionPtr parts[3];
  int colons = 0;
  while (!AtOperator("]")) {
    if (SkipOperator(":")) {
      if (++colons > 2) return Fail("']'");
      continue;
    }
    if (parts[colons] != nullptr) return Fail("':' or ']'");
    ALUDEL_ASSIGN_OR_RETURN(parts[colons], Expression());
  }
  ALUDEL_RETURN_IF_ERROR(ExpectOperator("]"));
  if (colons > 0) {
    return Make(Kind::kSlice, opening.line, std::move(node), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }
  if (parts[0] == nullptr) return Fail("a subscript");
  return Make(Kind::kItem, opening.line, std::move(node), std::move(parts[0]));
}

absl::Status Parser::Arguments(JinjaExpression* call) {
  ALUDEL_RETURN_IF_ERROR(ExpectOperator("("));
  while (!AtOperator(")")) {
    if (Peek().kind == Token::kName && AtOperator("=", 1)) {
      call->names.push_back(Next().text);
      ++at_;
    } else if (!call->names.empty()) {
      return Fail("a named argument");
    }
    if (AtOperator("*") || AtOperator("**")) return Fail("an argument that is not unpacked");
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr argument, Expression());
    call->children.push_back(std::move(argument));
    if (!SkipOperator(",")) break;
  }
  return ExpectOperator(")");
}

ExpressionOr Parser::Filters(JinjaExpressionPtr node) {
  while (true) {
    if (AtOperator("|")) {
      ++at_;
      ALUDEL_ASSIGN_OR_RETURN(node, Filter(std::move(node)));
    } else if (AtName("is")) {
      ALUDEL_ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (AtOperator("(")) {
      ALUDEL_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionOr Parser::Filter(JinjaExpressionPtr node) {
  const int line = Peek().line;
  ALUDEL_ASSIGN_OR_RETURN(std::string name, ExpectName());
  if (!IsJinjaFilter(name)) return JinjaError(line, absl::StrCat("filter '", name, "' is not supported"));
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr filter, Make(Kind::kFilter, line, std::move(node)));
  filter->name = std::move(name);
  if (AtOperator("(")) ALUDEL_RETURN_IF_ERROR(Arguments(filter.get()));
  return Finish(std::move(filter));
}

ExpressionOr Parser::Test(JinjaExpressionPtr node) {
  const int line = Next().line;
  const bool negated = SkipName("not");
  ALUDEL_ASSIGN_OR_RETURN(std::string name, ExpectName());
  if (!IsJinjaTest(name)) return JinjaError(line, absl::StrCat("test '", name, "' is not supported"));
  ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr test, Make(Kind::kTest, line, std::move(node)));
  test->name = std::move(name);
  const Token next = Peek().kind;
  const bool has_operand = next == Token::kString || next == Token::kInteger || next == Token::kFloat ||
                           AtOperator("[") || AtOperator("{") ||
                           (next == Token::kName && !AtName("else") && !AtName("or") && !AtName("and"));
  if (AtName("is")) return Fail("no second test");
  if (AtOperator("(")) {
    ALUDEL_RETURN_IF_ERROR(Arguments(test.get()));
  } else if (has_operand && !AtName("if") && !AtName("in") && !AtName("not")) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr operand, Primary());
    ALUDEL_ASSIGN_OR_RETURN(operand, Postfix(std::move(operand)));
    test->children.push_back(std::move(operand));
  }
  ALUDEL_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!negated) return test;
  return Make(Kind::kNot, line, std::move(test));
}

absl::StatusOr<JinjaBody> Parser::Body(std::initializer_list<absl::string_view> ends) {
  if (++recursion_ > kMaxStatementDepth) return JinjaError(Peek().line, "statements nest too deep");
  JinjaBody body;
  while (Peek().kind != Token::kEnd) {
    auto statement = std::make_unique<JinjaStatement>();
    statement->line = Peek().line;
    if (Peek().kind == Token::kText) {
      statement->text = Next().text;
    } else if (Peek().kind == Token::kOutputBegin) {
      ++at_;
      statement->kind = JinjaStatement::Kind::kOutput;
      ALUDEL_ASSIGN_OR_RETURN(statement->expression, Tuple(/*explicit_parentheses=*/false, true));
      if (Peek().kind != Token::kOutputEnd) return Fail("}}");
      ++at_;
    } else {
      ++at_;  // {%
      if (std::any_of(ends.begin(), ends.end(), [&](absl::string_view end) { return AtName(end); })) {
        --recursion_;
        return body;
      }
      ALUDEL_ASSIGN_OR_RETURN(statement, Statement());
    }
    body.push_back(std::move(statement));
  }
  if (ends.size() > 0) return Fail(absl::StrCat("{% ", *(ends.end() - 1), " %}"));
  --recursion_;
  return body;
}

StatementOr Parser::Statement() {
  const int line = Peek().line;
  if (AtName("if")) return If();
  if (AtName("for")) return For();
  if (AtName("set")) return Set();
  if (AtName("macro")) return Macro();
  if (AtName("call")) return CallBlock();
  if (AtName("with")) return With();
  auto statement = std::make_unique<JinjaStatement>();
  statement->line = line;
  if (AtName("break") || AtName("continue")) {
    if (loops_ == 0) return JinjaError(line, absl::StrCat("'", Peek().text, "' stands outside a loop"));
    statement->kind = AtName("break") ? JinjaStatement::Kind::kBreak : JinjaStatement::Kind::kContinue;
    ++at_;
    ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
    return statement;
  }
  if (SkipName("generation")) {
    statement->kind = JinjaStatement::Kind::kBody;
    ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
    ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endgeneration"}));
    ALUDEL_RETURN_IF_ERROR(End("endgeneration"));
    return statement;
  }
  if (SkipName("filter")) {
    statement->kind = JinjaStatement::Kind::kFilterBlock;
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, Filter(nullptr));
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, Filters(std::move(statement->expression)));
    ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
    ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endfilter"}));
    ALUDEL_RETURN_IF_ERROR(End("endfilter"));
    return statement;
  }
  return Fail("if, for, set, macro, call, with, filter, generation, break or continue");
}

StatementOr Parser::If() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kIf;
  statement->line = Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->expression, Tuple(/*explicit_parentheses=*/false, false));
  ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"elif", "else", "endif"}));
  if (AtName("elif")) {
    // An elif is an if of its own in the other branch; it reads the endif.
    if (++recursion_ > kMaxStatementDepth) return JinjaError(Peek().line, "statements nest too deep");
    ALUDEL_ASSIGN_OR_RETURN(auto other, If());
    --recursion_;
    statement->otherwise.push_back(std::move(other));
    return statement;
  }
  if (SkipName("else")) {
    ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
    ALUDEL_ASSIGN_OR_RETURN(statement->otherwise, Body({"endif"}));
  }
  ALUDEL_RETURN_IF_ERROR(End("endif"));
  return statement;
}

// A name, ns.attribute or several names.
ExpressionOr Parser::Target() {
  auto tuple = std::make_unique<JinjaExpression>();
  tuple->kind = Kind::kTuple;
  tuple->line = Peek().line;
  bool is_tuple = false;
  do {
    if (AtName("in") || AtOperator("=")) break;  // after a trailing comma
    JinjaExpressionPtr item;
    if (SkipOperator("(")) {
      if (++recursion_ > kMaxExpressionDepth) return JinjaError(Peek().line, "an expression nests too deep");
      ALUDEL_ASSIGN_OR_RETURN(item, Target());
      --recursion_;
      ALUDEL_RETURN_IF_ERROR(ExpectOperator(")"));
    } else {
      const int line = Peek().line;
      ALUDEL_ASSIGN_OR_RETURN(std::string name, ExpectName());
      ALUDEL_ASSIGN_OR_RETURN(item, Make(Kind::kName, line));
      item->name = std::move(name);
      if (SkipOperator(".")) {
        ALUDEL_ASSIGN_OR_RETURN(std::string attribute, ExpectName());
        ALUDEL_ASSIGN_OR_RETURN(item, Make(Kind::kAttribute, line, std::move(item)));
        item->name = std::move(attribute);
      }
    }
    tuple->children.push_back(std::move(item));
    if (AtOperator(",")) is_tuple = true;
  } while (SkipOperator(","));
  if (tuple->children.empty()) return Fail("a name");
  if (!is_tuple) return std::move(tuple->children[0]);
  return Finish(std::move(tuple));
}

StatementOr Parser::For() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kFor;
  statement->line = Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->target, Target());
  if (!SkipName("in")) return Fail("'in'");
  ALUDEL_ASSIGN_OR_RETURN(statement->expression, Tuple(/*explicit_parentheses=*/false, false));
  if (SkipName("if")) {
    ALUDEL_ASSIGN_OR_RETURN(statement->condition, Expression());
  }
  if (AtName("recursive")) return Fail("%} (recursive loops are not supported)");
  ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
  ++loops_;
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"else", "endfor"}));
  --loops_;
  if (SkipName("else")) {
    ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
    ALUDEL_ASSIGN_OR_RETURN(statement->otherwise, Body({"endfor"}));
  }
  ALUDEL_RETURN_IF_ERROR(End("endfor"));
  return statement;
}

StatementOr Parser::Set() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->line = Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->target, Target());
  if (SkipOperator("=")) {
    statement->kind = JinjaStatement::Kind::kSet;
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, Tuple(/*explicit_parentheses=*/false, true));
    ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
    return statement;
  }
  statement->kind = JinjaStatement::Kind::kSetBlock;
  if (SkipOperator("|")) {
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, Filter(nullptr));
    ALUDEL_ASSIGN_OR_RETURN(statement->expression, Filters(std::move(statement->expression)));
  }
  ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endset"}));
  ALUDEL_RETURN_IF_ERROR(End("endset"));
  return statement;
}

absl::Status Parser::Parameters(JinjaStatement* statement) {
  ALUDEL_RETURN_IF_ERROR(ExpectOperator("("));
  while (!AtOperator(")")) {
    ALUDEL_ASSIGN_OR_RETURN(std::string name, ExpectName());
    statement->names.push_back(std::move(name));
    if (SkipOperator("=")) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, Expression());
      statement->expressions.push_back(std::move(value));
    } else if (!statement->expressions.empty()) {
      return Fail("a default value");
    }
    if (!SkipOperator(",")) break;
  }
  return ExpectOperator(")");
}

StatementOr Parser::Macro() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kMacro;
  statement->line = Next().line;
  ALUDEL_ASSIGN_OR_RETURN(statement->text, ExpectName());
  ALUDEL_RETURN_IF_ERROR(Parameters(statement.get()));
  ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
  const int loops = std::exchange(loops_, 0);
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endmacro"}));
  loops_ = loops;
  ALUDEL_RETURN_IF_ERROR(End("endmacro"));
  return statement;
}

StatementOr Parser::CallBlock() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kCallBlock;
  statement->line = Next().line;
  if (AtOperator("(")) ALUDEL_RETURN_IF_ERROR(Parameters(statement.get()));
  ALUDEL_ASSIGN_OR_RETURN(statement->expression, Expression());
  if (statement->expression->kind != Kind::kCall)
    return JinjaError(statement->line, "{% call %} wants a call");
  ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
  const int loops = std::exchange(loops_, 0);
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endcall"}));
  loops_ = loops;
  ALUDEL_RETURN_IF_ERROR(End("endcall"));
  return statement;
}

StatementOr Parser::With() {
  auto statement = std::make_unique<JinjaStatement>();
  statement->kind = JinjaStatement::Kind::kWith;
  statement->line = Next().line;
  while (Peek().kind != Token::kTagEnd) {
    ALUDEL_ASSIGN_OR_RETURN(std::string name, ExpectName());
    ALUDEL_RETURN_IF_ERROR(ExpectOperator("="));
    ALUDEL_ASSIGN_OR_RETURN(JinjaExpressionPtr value, Expression());
    statement->names.push_back(std::move(name));
    statement->expressions.push_back(std::move(value));
    if (!SkipOperator(",")) break;
  }
  ALUDEL_RETURN_IF_ERROR(ExpectTagEnd());
  ALUDEL_ASSIGN_OR_RETURN(statement->body, Body({"endwith"}));
  ALUDEL_RETURN_IF_ERROR(End("endwith"));
  return statement;
}

}  // namespace

absl::StatusOr<JinjaBody> ParseJinja(absl::string_view source) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, LexJinja(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace aludel
