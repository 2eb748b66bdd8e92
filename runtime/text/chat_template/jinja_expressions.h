#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/chat_template/jinja_ast.h"
#include "runtime/text/chat_template/jinja_cursor.h"

namespace aludel {

// Jinja's expressions, by recursive descent: a method for each level of precedence. Reads from the cursor to
// behind what it returns; after an error the cursor is of no use.
class JinjaExpressions {
 public:
  using ExpressionOr = absl::StatusOr<JinjaExpressionPtr>;

  explicit JinjaExpressions(JinjaCursor& at) : at_(at) {}

  ExpressionOr Expression();
  // One expression, or several with commas between them. Without `with_conditional` an `if` is left to the
  // caller: that of a loop filters it.
  ExpressionOr Tuple(bool explicit_parentheses, bool with_conditional);
  // A filter by name and the filters and tests behind it; the first has no operand, which is a block.
  ExpressionOr BlockFilters();
  // What a loop or an assignment fills: a name, ns.attribute or several names.
  ExpressionOr Target();

 private:
  template <typename... Children>
  ExpressionOr Make(JinjaExpression::Kind kind, int line, Children... children);
  static ExpressionOr Finish(JinjaExpressionPtr node);

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
  ExpressionOr List();
  ExpressionOr Dict();
  absl::Status Arguments(JinjaExpression* call);
  bool AtTupleEnd() const;

  JinjaCursor& at_;
};

}  // namespace aludel
