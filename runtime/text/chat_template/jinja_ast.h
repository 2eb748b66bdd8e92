#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/text/chat_template/jinja_value.h"

namespace aludel {

struct JinjaExpression;
using JinjaExpressionPtr = std::unique_ptr<JinjaExpression>;

// A node of an expression; `children` by kind.
struct JinjaExpression {
  enum class Kind {
    kConstant,     // constant
    kName,         // name
    kAttribute,    // object; name
    kItem,         // object, key
    kSlice,        // object, start, stop, step (each but the first may be null)
    kCall,         // callee, arguments; the last names.size() of them are named
    kFilter,       // operand (null in a filter block), arguments as in kCall; name
    kTest,         // operand, arguments as in kCall; name
    kNot,          // operand
    kNegative,     // operand
    kPositive,     // operand
    kAnd,          // left, right
    kOr,           // left, right
    kArithmetic,   // left, right; name is the operator
    kConcat,       // operands
    kCompare,      // operands; names are the operators between them
    kConditional,  // condition, value, other (may be null)
    kList,         // items
    kTuple,        // items
    kDict,         // key, value, key, value, ...
  };

  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below, itself included
  std::string name;
  JinjaValue constant;
  std::vector<JinjaExpressionPtr> children;
  std::vector<std::string> names;
};

struct JinjaStatement;
using JinjaBody = std::vector<std::unique_ptr<JinjaStatement>>;

// A piece of a template.
struct JinjaStatement {
  enum class Kind {
    kText,         // text
    kOutput,       // expression
    kIf,           // expression, body, otherwise
    kFor,          // target, expression, condition (may be null), body, otherwise
    kSet,          // target, expression
    kSetBlock,     // target, body, expression (a filter chain over it; may be null)
    kMacro,        // text (its name), names (parameters), expressions (defaults of the last ones), body
    kCallBlock,    // expression (a call), names (parameters of caller), expressions, body
    kFilterBlock,  // expression (a filter chain), body
    kWith,         // names, expressions, body
    kBody,         // body ({% generation %}, which only marks text)
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  JinjaExpressionPtr target;  // a name, a tuple of targets, or an attribute (of a namespace)
  JinjaExpressionPtr expression;
  JinjaExpressionPtr condition;
  std::vector<std::string> names;
  std::vector<JinjaExpressionPtr> expressions;
  JinjaBody body;
  JinjaBody otherwise;
};

}  // namespace aludel
