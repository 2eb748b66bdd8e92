#include "runtime/text/chat_template/jinja_eval.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_lexer.h"

namespace aludel {
namespace {

using Kind = JinjaExpression::Kind;
using Result = absl::StatusOr<JinjaValue>;

constexpr int64_t kMaxSteps = 4'000'000;
constexpr size_t kMaxTextBytes = 32u << 20;
// Nested evaluations, macro calls included. A level costs less than 2 KiB of stack.
constexpr int kMaxRecursion = 400;

// Names of one block. Lives on the stack of the evaluator: values only travel inwards and as text outwards.
struct Scope {
  const Scope* parent = nullptr;
  JinjaValue::Dict names;

  const JinjaValue* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      for (const auto& [known, value] : scope->names) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }
  void Set(const std::string& name, JinjaValue value) {
    for (auto& [known, old] : names) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }
};

// `loop` inside a for.
class Loop : public JinjaObject {
 public:
  explicit Loop(const JinjaValue::List& items) : items_(items) {}
  void MoveTo(size_t index) { index_ = index; }

  Result Attribute(const std::string& name) override {
    const auto number = [](size_t value) { return JinjaValue::Int(static_cast<int64_t>(value)); };
    const size_t size = items_.size();
    if (name == "index") return number(index_ + 1);
    if (name == "index0") return number(index_);
    if (name == "revindex") return number(size - index_);
    if (name == "revindex0") return number(size - index_ - 1);
    if (name == "first") return JinjaValue::Bool(index_ == 0);
    if (name == "last") return JinjaValue::Bool(index_ + 1 == size);
    if (name == "length") return number(size);
    if (name == "depth") return number(1);
    if (name == "depth0") return number(0);
    if (name == "previtem" && index_ > 0) return items_[index_ - 1];
    if (name == "nextitem" && index_ + 1 < size) return items_[index_ + 1];
    if (name == "cycle") {
      return JinjaValue::MakeFunction(name, [this](const JinjaArguments& arguments) -> Result {
        if (arguments.positional.empty()) return absl::InvalidArgumentError("loop.cycle wants values");
        return arguments.positional[index_ % arguments.positional.size()];
      });
    }
    if (name == "changed") {
      return JinjaValue::MakeFunction(name, [this](const JinjaArguments& arguments) -> Result {
        ALUDEL_ASSIGN_OR_RETURN(const JinjaValue now, JinjaValue::MakeList(arguments.positional));
        const bool changed = !has_last_ || !JinjaEquals(now, last_);
        has_last_ = true;
        last_ = now;
        return JinjaValue::Bool(changed);
      });
    }
    return JinjaValue::Undefined(absl::StrCat("'", name, "' of loop"));
  }

 private:
  const JinjaValue::List& items_;
  size_t index_ = 0;
  bool has_last_ = false;
  JinjaValue last_;
};

class Evaluator {
 public:
  Evaluator() : budget_(kMaxSteps, kMaxTextBytes) {}

  absl::StatusOr<std::string> Render(const JinjaBody& body, const JinjaValue::Dict& context) {
    Scope scope;
    scope.names = context;
    ALUDEL_RETURN_IF_ERROR(Run(body, &scope).status());
    return std::move(output_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Gives a builtin's error its line; the template's own errors and those that have one pass.
  static absl::Status At(int line, const absl::Status& status) {
    if (absl::IsAborted(status) || absl::StartsWith(status.message(), "chat template line ")) return status;
    return JinjaError(line, status.message());
  }
  template <typename T>
  static absl::StatusOr<T> At(int line, absl::StatusOr<T> result) {
    if (!result.ok()) return At(line, result.status());
    return result;
  }

  absl::Status Emit(absl::string_view text, int line) {
    absl::Status status = budget_.Text(text.size());
    if (status.ok()) status = budget_.Fits(output_.size() + text.size());
    if (!status.ok()) return At(line, status);
    absl::StrAppend(&output_, text);
    return absl::OkStatus();
  }

  // Runs `body` and returns what it wrote instead of writing it.
  Result Capture(const JinjaBody& body, Scope* scope) {
    std::string outer = std::exchange(output_, std::string());
    const absl::StatusOr<Flow> flow = Run(body, scope);
    std::string text = std::exchange(output_, std::move(outer));
    if (!flow.ok()) return flow.status();
    return JinjaValue::String(std::move(text));
  }

  // Statements.
  absl::StatusOr<Flow> Run(const JinjaBody& body, Scope* scope);
  absl::StatusOr<Flow> Execute(const JinjaStatement& statement, Scope* scope);
  absl::StatusOr<Flow> For(const JinjaStatement& statement, Scope* scope);
  absl::Status CallBlock(const JinjaStatement& statement, Scope* scope);
  absl::StatusOr<Flow> With(const JinjaStatement& statement, Scope* scope);
  absl::Status Assign(const JinjaExpression& target, JinjaValue value, Scope* scope);
  JinjaValue MakeMacro(const JinjaStatement& statement, const Scope* scope);
  Result CallMacro(const JinjaStatement& statement, const Scope* scope, const JinjaArguments& arguments);

  // Expressions.
  Result Evaluate(const JinjaExpression& expression, const Scope* scope) {
    if (++recursion_ > kMaxRecursion) return JinjaError(expression.line, "the template nests too deep");
    absl::Status step = budget_.Step();
    if (!step.ok()) return At(expression.line, step);
    Result result = At(expression.line, EvaluateNode(expression, scope));
    --recursion_;
    return result;
  }
  Result EvaluateNode(const JinjaExpression& expression, const Scope* scope);
  Result Compare(const JinjaExpression& expression, const Scope* scope);
  Result Sign(const JinjaExpression& expression, const Scope* scope);
  Result Concat(const JinjaExpression& expression, const Scope* scope);
  Result Collection(const JinjaExpression& expression, const Scope* scope);
  Result Dictionary(const JinjaExpression& expression, const Scope* scope);
  Result Slice(const JinjaExpression& expression, const Scope* scope);
  Result Call(const JinjaExpression& expression, const Scope* scope, const JinjaValue* caller);
  Result Test(const JinjaExpression& expression, const Scope* scope);
  // `captured` stands for the operand that a filter chain over a block leaves out.
  Result Filter(const JinjaExpression& expression, const Scope* scope, const JinjaValue* captured);
  absl::StatusOr<JinjaArguments> Arguments(const JinjaExpression& expression, const Scope* scope);

  JinjaBudget budget_;
  std::string output_;
  int recursion_ = 0;
};

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const JinjaBody& body, Scope* scope) {
  if (++recursion_ > kMaxRecursion) {
    return JinjaError(body.empty() ? 0 : body.front()->line, "the template nests too deep");
  }
  for (const auto& statement : body) {
    absl::Status step = budget_.Step();
    if (!step.ok()) return At(statement->line, step);
    ALUDEL_ASSIGN_OR_RETURN(const Flow flow, Execute(*statement, scope));
    if (flow != Flow::kNext) {
      --recursion_;
      return flow;
    }
  }
  --recursion_;
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Execute(const JinjaStatement& statement, Scope* scope) {
  switch (statement.kind) {
    case JinjaStatement::Kind::kText:
      ALUDEL_RETURN_IF_ERROR(Emit(statement.text, statement.line));
      return Flow::kNext;
    case JinjaStatement::Kind::kOutput: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*statement.expression, scope));
      ALUDEL_RETURN_IF_ERROR(Emit(JinjaText(value), statement.line));
      return Flow::kNext;
    }
    case JinjaStatement::Kind::kIf: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue condition, Evaluate(*statement.expression, scope));
      return Run(condition.Truth() ? statement.body : statement.otherwise, scope);
    }
    case JinjaStatement::Kind::kFor:
      return For(statement, scope);
    case JinjaStatement::Kind::kSet: {
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*statement.expression, scope));
      ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, std::move(value), scope));
      return Flow::kNext;
    }
    case JinjaStatement::Kind::kSetBlock:
    case JinjaStatement::Kind::kFilterBlock: {
      Scope inner{scope, {}};
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Capture(statement.body, &inner));
      if (statement.expression != nullptr) {
        ALUDEL_ASSIGN_OR_RETURN(value, Filter(*statement.expression, scope, &value));
      }
      if (statement.kind == JinjaStatement::Kind::kSetBlock) {
        ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, std::move(value), scope));
      } else {
        ALUDEL_RETURN_IF_ERROR(Emit(JinjaText(value), statement.line));
      }
      return Flow::kNext;
    }
    case JinjaStatement::Kind::kMacro:
      scope->Set(statement.text, MakeMacro(statement, scope));
      return Flow::kNext;
    case JinjaStatement::Kind::kCallBlock:
      ALUDEL_RETURN_IF_ERROR(CallBlock(statement, scope));
      return Flow::kNext;
    case JinjaStatement::Kind::kWith:
      return With(statement, scope);
    case JinjaStatement::Kind::kBody:
      return Run(statement.body, scope);
    case JinjaStatement::Kind::kBreak:
      return Flow::kBreak;
    case JinjaStatement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::For(const JinjaStatement& statement, Scope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue iterable, Evaluate(*statement.expression, scope));
  absl::StatusOr<JinjaValue::List> all = JinjaIterate(iterable, &budget_);
  if (!all.ok()) return At(statement.line, all.status());
  JinjaValue::List items;
  if (statement.condition == nullptr) {
    items = *std::move(all);
  } else {
    for (JinjaValue& item : *all) {
      Scope inner{scope, {}};
      ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, item, &inner));
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue condition, Evaluate(*statement.condition, &inner));
      if (condition.Truth()) items.push_back(std::move(item));
    }
  }
  if (items.empty()) return Run(statement.otherwise, scope);
  const auto loop = std::make_shared<Loop>(items);
  const JinjaValue loop_value = JinjaValue::MakeObject(loop);
  for (size_t i = 0; i < items.size(); ++i) {
    loop->MoveTo(i);
    Scope inner{scope, {}};
    inner.Set("loop", loop_value);
    ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, items[i], &inner));
    ALUDEL_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body, &inner));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

absl::Status Evaluator::Assign(const JinjaExpression& target, JinjaValue value, Scope* scope) {
  if (target.kind == Kind::kName) {
    scope->Set(target.name, std::move(value));
    return absl::OkStatus();
  }
  if (target.kind == Kind::kAttribute) {
    const std::string& name = target.children[0]->name;
    const JinjaValue* object = scope->Find(name);
    if (object == nullptr || object->kind() != JinjaValue::Kind::kNamespace) {
      return JinjaError(target.line,
                        absl::StrCat("cannot assign to an attribute of '", name, "', it is no namespace"));
    }
    if (!value.is_data()) {
      return JinjaError(target.line, absl::StrCat("a namespace cannot hold ", value.Describe()));
    }
    object->SetMember(target.name, std::move(value));
    return absl::OkStatus();
  }
  absl::StatusOr<JinjaValue::List> items = JinjaIterate(value, &budget_);
  if (!items.ok()) return At(target.line, items.status());
  if (items->size() != target.children.size()) {
    return JinjaError(target.line,
                      absl::StrCat("cannot unpack ", items->size(), " values into ", target.children.size()));
  }
  for (size_t i = 0; i < items->size(); ++i) {
    ALUDEL_RETURN_IF_ERROR(Assign(*target.children[i], std::move((*items)[i]), scope));
  }
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::With(const JinjaStatement& statement, Scope* scope) {
  Scope inner{scope, {}};
  for (size_t i = 0; i < statement.names.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*statement.expressions[i], scope));
    inner.Set(statement.names[i], std::move(value));
  }
  return Run(statement.body, &inner);
}

JinjaValue Evaluator::MakeMacro(const JinjaStatement& statement, const Scope* scope) {
  return JinjaValue::MakeFunction(statement.text, [this, &statement, scope](const JinjaArguments& arguments) {
    return CallMacro(statement, scope, arguments);
  });
}

Result Evaluator::CallMacro(const JinjaStatement& statement, const Scope* scope,
                            const JinjaArguments& arguments) {
  const size_t count = statement.names.size();
  const absl::string_view name = statement.text.empty() ? "caller" : absl::string_view(statement.text);
  if (arguments.positional.size() > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' got ", arguments.positional.size(), " arguments, wants at most ", count));
  }
  Scope inner{scope, {}};
  for (const auto& [known, value] : arguments.named) {
    const bool is_parameter =
        std::find(statement.names.begin(), statement.names.end(), known) != statement.names.end();
    if (!is_parameter && known != "caller") {
      return absl::InvalidArgumentError(absl::StrCat("'", name, "' has no parameter '", known, "'"));
    }
    inner.Set(known, value);
  }
  const size_t first_default = count - statement.expressions.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string& parameter = statement.names[i];
    if (i < arguments.positional.size()) {
      inner.Set(parameter, arguments.positional[i]);
      continue;
    }
    const bool given = std::any_of(inner.names.begin(), inner.names.end(),
                                   [&](const auto& item) { return item.first == parameter; });
    if (given) continue;
    JinjaValue value = JinjaValue::Undefined(absl::StrCat("parameter '", parameter, "'"));
    if (i >= first_default) {
      ALUDEL_ASSIGN_OR_RETURN(value, Evaluate(*statement.expressions[i - first_default], &inner));
    }
    inner.Set(parameter, std::move(value));
  }
  return Capture(statement.body, &inner);
}

absl::Status Evaluator::CallBlock(const JinjaStatement& statement, Scope* scope) {
  const JinjaValue caller = MakeMacro(statement, scope);
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value,
                          At(statement.line, Call(*statement.expression, scope, &caller)));
  return Emit(JinjaText(value), statement.line);
}

Result Evaluator::EvaluateNode(const JinjaExpression& expression, const Scope* scope) {
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

Result Evaluator::Sign(const JinjaExpression& expression, const Scope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*expression.children[0], scope));
  if (expression.kind == Kind::kPositive) return JinjaArithmetic("+", JinjaValue::Int(0), value, &budget_);
  if (value.kind() == JinjaValue::Kind::kFloat) return JinjaValue::Float(-value.AsFloat());
  return JinjaArithmetic("-", JinjaValue::Int(0), value, &budget_);
}

Result Evaluator::Concat(const JinjaExpression& expression, const Scope* scope) {
  std::string text;
  for (const auto& child : expression.children) {
    ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, Evaluate(*child, scope));
    text += JinjaText(value);
    ALUDEL_RETURN_IF_ERROR(budget_.Text(text.size()));
  }
  return JinjaValue::String(std::move(text));
}

Result Evaluator::Compare(const JinjaExpression& expression, const Scope* scope) {
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

Result Evaluator::Collection(const JinjaExpression& expression, const Scope* scope) {
  JinjaValue::List items;
  for (const auto& child : expression.children) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*child, scope));
    items.push_back(std::move(value));
  }
  return expression.kind == Kind::kList ? JinjaValue::MakeList(std::move(items))
                                        : JinjaValue::MakeTuple(std::move(items));
}

Result Evaluator::Dictionary(const JinjaExpression& expression, const Scope* scope) {
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

Result Evaluator::Slice(const JinjaExpression& expression, const Scope* scope) {
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

absl::StatusOr<JinjaArguments> Evaluator::Arguments(const JinjaExpression& expression, const Scope* scope) {
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

Result Evaluator::Call(const JinjaExpression& expression, const Scope* scope, const JinjaValue* caller) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue callee, Evaluate(*expression.children[0], scope));
  ALUDEL_ASSIGN_OR_RETURN(JinjaArguments arguments, Arguments(expression, scope));
  if (callee.is_undefined()) return absl::InvalidArgumentError(absl::StrCat(callee.name(), " is undefined"));
  if (callee.kind() != JinjaValue::Kind::kFunction) {
    return absl::InvalidArgumentError(absl::StrCat("cannot call ", callee.Describe()));
  }
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return callee.AsFunction()(arguments);
}

Result Evaluator::Test(const JinjaExpression& expression, const Scope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue operand, Evaluate(*expression.children[0], scope));
  ALUDEL_ASSIGN_OR_RETURN(const JinjaArguments arguments, Arguments(expression, scope));
  ALUDEL_ASSIGN_OR_RETURN(const bool holds, ApplyJinjaTest(expression.name, operand, arguments));
  return JinjaValue::Bool(holds);
}

Result Evaluator::Filter(const JinjaExpression& expression, const Scope* scope, const JinjaValue* captured) {
  JinjaValue operand;
  if (expression.children[0] == nullptr) {
    operand = *captured;
  } else if (captured != nullptr && expression.children[0]->kind == Kind::kFilter) {
    ALUDEL_ASSIGN_OR_RETURN(operand, Filter(*expression.children[0], scope, captured));
  } else {
    ALUDEL_ASSIGN_OR_RETURN(operand, Evaluate(*expression.children[0], scope));
  }
  ALUDEL_ASSIGN_OR_RETURN(const JinjaArguments arguments, Arguments(expression, scope));
  return At(expression.line, ApplyJinjaFilter(expression.name, operand, arguments, &budget_));
}

}  // namespace

absl::StatusOr<std::string> RenderJinja(const JinjaBody& body, const JinjaValue::Dict& context) {
  absl::StatusOr<std::string> text = Evaluator().Render(body, context);
  if (absl::IsAborted(text.status())) return absl::InvalidArgumentError(text.status().message());
  return text;
}

}  // namespace aludel
