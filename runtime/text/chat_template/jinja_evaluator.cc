#include "runtime/text/chat_template/jinja_evaluator.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_lexer.h"

namespace aludel {
namespace {

using Kind = JinjaExpression::Kind;
using Result = JinjaEvaluator::Result;

// Nested evaluations, macro calls included. A level costs less than 2 KiB of stack.
constexpr int kMaxDepth = 400;

}  // namespace

absl::Status JinjaErrorAt(int line, const absl::Status& status) {
  if (absl::IsAborted(status) || absl::StartsWith(status.message(), "chat template line ")) return status;
  return JinjaError(line, status.message());
}

absl::Status JinjaEvaluator::Enter(int line) {
  if (++depth_ <= kMaxDepth) return absl::OkStatus();
  return JinjaError(line, "the template nests too deep");
}

Result JinjaEvaluator::Evaluate(const JinjaExpression& expression, const JinjaScope* scope) {
  ALUDEL_RETURN_IF_ERROR(Enter(expression.line));
  absl::Status step = budget_.Step();
  if (!step.ok()) return JinjaErrorAt(expression.line, step);
  Result result = JinjaErrorAt(expression.line, EvaluateNode(expression, scope));
  Leave();
  return result;
}

Result JinjaEvaluator::EvaluateNode(const JinjaExpression& expression, const JinjaScope* scope) {
  const auto& children = expression.children;
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName: {
      const JinjaValue* found = scope->Find(expression.name);
      return found != nullptr ? *found : JinjaGlobal(expression.name, &budget_);
    }
    case Kind::kAttribute: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue object, Evaluate(*children[0], scope));
      return JinjaAttribute(object, expression.name, &budget_);
    }
    case Kind::kItem: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue object, Evaluate(*children[0], scope));
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue key, Evaluate(*children[1], scope));
      return JinjaItem(object, key, &budget_);
    }
    case Kind::kSlice:
      return Slice(expression, scope);
    case Kind::kCall:
      return Call(expression, scope, nullptr);
    case Kind::kFilter:
      return Filter(expression, scope, nullptr);
    case Kind::kTest:
      return Test(expression, scope);
    case Kind::kNot: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*children[0], scope));
      return JinjaValue::Bool(!value.Truth());
    }
    case Kind::kNegative:
    case Kind::kPositive:
      return Sign(expression, scope);
    case Kind::kAnd:
    case Kind::kOr: {
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*children[0], scope));
      if (left.Truth() == (expression.kind == Kind::kOr)) return left;
      return Evaluate(*children[1], scope);
    }
    case Kind::kArithmetic: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue left, Evaluate(*children[0], scope));
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue right, Evaluate(*children[1], scope));
      return JinjaArithmetic(expression.name, left, right, &budget_);
    }
    case Kind::kConcat:
      return Concat(expression, scope);
    case Kind::kCompare:
      return Compare(expression, scope);
    case Kind::kConditional: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue condition, Evaluate(*children[0], scope));
      if (condition.Truth()) return Evaluate(*children[1], scope);
      if (children[2] != nullptr) return Evaluate(*children[2], scope);
      return JinjaValue::Undefined("an if expression without else");
    }
    case Kind::kList:
    case Kind::kTuple:
      return Collection(expression, scope);
    case Kind::kDict:
      return Dictionary(expression, scope);
  }
  return absl::InternalError("an expression of no kind");
}

Result JinjaEvaluator::Sign(const JinjaExpression& expression, const JinjaScope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*expression.children[0], scope));
  if (expression.kind == Kind::kPositive) return JinjaArithmetic("+", JinjaValue::Int(0), value, &budget_);
  if (value.kind() == JinjaValue::Kind::kFloat) return JinjaValue::Float(-value.AsFloat());
  return JinjaArithmetic("-", JinjaValue::Int(0), value, &budget_);
}

Result JinjaEvaluator::Concat(const JinjaExpression& expression, const JinjaScope* scope) {
  std::string text;
  for (const auto& child : expression.children) {
    ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*child, scope));
    text += JinjaText(value);
    ALUDEL_RETURN_IF_ERROR(budget_.Text(text.size()));
  }
  return JinjaValue::String(std::move(text));
}

Result JinjaEvaluator::Compare(const JinjaExpression& expression, const JinjaScope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*expression.children[0], scope));
  for (size_t i = 0; i < expression.names.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue right, Evaluate(*expression.children[i + 1], scope));
    const std::string& name = expression.names[i];
    bool holds = false;
    if (name == "==" || name == "!=") {
      holds = JinjaEquals(left, right) == (name == "==");
    } else if (name == "in" || name == "not in") {
      if (right.is_sequence()) ALUDEL_RETURN_IF_ERROR(budget_.Items(right.AsList().size()));
      ALUDEL_ASSIGN_OR_RETURN(const bool contains, JinjaContains(right, left));
      holds = contains == (name == "in");
    } else {
      ALUDEL_ASSIGN_OR_RETURN(const int order, JinjaCompare(left, right));
      holds = name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return JinjaValue::Bool(false);
    left = std::move(right);
  }
  return JinjaValue::Bool(true);
}

Result JinjaEvaluator::Collection(const JinjaExpression& expression, const JinjaScope* scope) {
  JinjaValue::List items;
  for (const auto& child : expression.children) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*child, scope));
    items.push_back(std::move(value));
  }
  return expression.kind == Kind::kList ? JinjaValue::MakeList(std::move(items))
                                        : JinjaValue::MakeTuple(std::move(items));
}

Result JinjaEvaluator::Dictionary(const JinjaExpression& expression, const JinjaScope* scope) {
  JinjaValue::Dict items;
  for (size_t i = 0; i < expression.children.size(); i += 2) {
    ALUDEL_ASSIGN_OR_RETURN(const JinjaValue key, Evaluate(*expression.children[i], scope));
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*expression.children[i + 1], scope));
    if (!key.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a dictionary key is ", key.Describe(), ", want a string"));
    }
    items.emplace_back(key.AsString(), std::move(value));
  }
  return JinjaValue::MakeDict(std::move(items));
}

Result JinjaEvaluator::Slice(const JinjaExpression& expression, const JinjaScope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue object, Evaluate(*expression.children[0], scope));
  JinjaValue bounds[3];
  const JinjaValue* given[3] = {nullptr, nullptr, nullptr};
  for (size_t i = 0; i < 3; ++i) {
    if (expression.children[i + 1] == nullptr) continue;
    ALUDEL_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.children[i + 1], scope));
    given[i] = &bounds[i];
  }
  return JinjaSlice(object, given[0], given[1], given[2], &budget_);
}

absl::StatusOr<JinjaArguments> JinjaEvaluator::Arguments(const JinjaExpression& expression,
                                                         const JinjaScope* scope) {
  JinjaArguments arguments;
  const size_t positional = expression.children.size() - expression.names.size();
  for (size_t i = 1; i < expression.children.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*expression.children[i], scope));
    if (i < positional) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(expression.names[i - positional], std::move(value));
    }
  }
  return arguments;
}

Result JinjaEvaluator::Call(const JinjaExpression& expression, const JinjaScope* scope,
                            const JinjaValue* caller) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue callee, Evaluate(*expression.children[0], scope));
  ALUDEL_ASSIGN_OR_RETURN(JinjaArguments arguments, Arguments(expression, scope));
  if (callee.is_undefined()) return absl::InvalidArgumentError(absl::StrCat(callee.name(), " is undefined"));
  if (callee.kind() != JinjaValue::Kind::kFunction) {
    return absl::InvalidArgumentError(absl::StrCat("cannot call ", callee.Describe()));
  }
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return callee.AsFunction()(arguments);
}

Result JinjaEvaluator::Test(const JinjaExpression& expression, const JinjaScope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue operand, Evaluate(*expression.children[0], scope));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaArguments arguments, Arguments(expression, scope));
  ALUDEL_ASSIGN_OR_RETURN(const bool holds, ApplyJinjaTest(expression.name, operand, arguments));
  return JinjaValue::Bool(holds);
}

Result JinjaEvaluator::Filter(const JinjaExpression& expression, const JinjaScope* scope,
                              const JinjaValue* captured) {
  JinjaValue operand;
  if (expression.children[0] == nullptr) {
    operand = *captured;
  } else if (captured != nullptr && expression.children[0]->kind == Kind::kFilter) {
    ALUDEL_ASSIGN_OR_RETURN(operand, Filter(*expression.children[0], scope, captured));
  } else {
    ALUDEL_ASSIGN_OR_RETURN(operand, Evaluate(*expression.children[0], scope));
  }
  ALUDEL_ASSIGN_OR_RETURN(const JinjaArguments arguments, Arguments(expression, scope));
  return JinjaErrorAt(expression.line, ApplyJinjaFilter(expression.name, operand, arguments, &budget_));
}

}  // namespace aludel
