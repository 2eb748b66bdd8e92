#include "runtime/text/chat_template/jinja_eval.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_evaluator.h"
#include "runtime/text/chat_template/jinja_lexer.h"

namespace aludel {
namespace {

using Kind = JinjaExpression::Kind;
using Result = absl::StatusOr<JinjaValue>;

constexpr int64_t kMaxSteps = 4'000'000;
constexpr size_t kMaxTextBytes = 32u << 20;
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

// Runs statements; their text is the output. Of one rendering.
class Renderer {
 public:
  Renderer() : budget_(kMaxSteps, kMaxTextBytes), expressions_(budget_) {}

  absl::StatusOr<std::string> Render(const JinjaBody& body, const JinjaValue::Dict& context) {
    JinjaScope scope;
    scope.names = context;
    ALUDEL_RETURN_IF_ERROR(Run(body, &scope).status());
    return std::move(output_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  absl::Status Emit(absl::string_view text, int line) {
    absl::Status status = budget_.Text(text.size());
    if (status.ok()) status = budget_.Fits(output_.size() + text.size());
    if (!status.ok()) return JinjaErrorAt(line, status);
    absl::StrAppend(&output_, text);
    return absl::OkStatus();
  }

  // Runs `body` and returns what it wrote instead of writing it.
  Result Capture(const JinjaBody& body, JinjaScope* scope) {
    std::string outer = std::exchange(output_, std::string());
    const absl::StatusOr<Flow> flow = Run(body, scope);
    std::string text = std::exchange(output_, std::move(outer));
    if (!flow.ok()) return flow.status();
    return JinjaValue::String(std::move(text));
  }

  absl::StatusOr<Flow> Run(const JinjaBody& body, JinjaScope* scope);
  absl::StatusOr<Flow> Execute(const JinjaStatement& statement, JinjaScope* scope);
  absl::StatusOr<Flow> For(const JinjaStatement& statement, JinjaScope* scope);
  absl::Status CallBlock(const JinjaStatement& statement, JinjaScope* scope);
  absl::StatusOr<Flow> With(const JinjaStatement& statement, JinjaScope* scope);
  absl::Status Assign(const JinjaExpression& target, JinjaValue value, JinjaScope* scope);
  JinjaValue MakeMacro(const JinjaStatement& statement, const JinjaScope* scope);
  Result CallMacro(const JinjaStatement& statement, const JinjaScope* scope, const JinjaArguments& arguments);

  JinjaBudget budget_;
  JinjaEvaluator expressions_;
  std::string output_;
};

absl::StatusOr<Renderer::Flow> Renderer::Run(const JinjaBody& body, JinjaScope* scope) {
  ALUDEL_RETURN_IF_ERROR(expressions_.Enter(body.empty() ? 0 : body.front()->line));
  for (const auto& statement : body) {
    absl::Status step = budget_.Step();
    if (!step.ok()) return JinjaErrorAt(statement->line, step);
    ALUDEL_ASSIGN_OR_RETURN(const Flow flow, Execute(*statement, scope));
    if (flow != Flow::kNext) {
      expressions_.Leave();
      return flow;
    }
  }
  expressions_.Leave();
  return Flow::kNext;
}

absl::StatusOr<Renderer::Flow> Renderer::Execute(const JinjaStatement& statement, JinjaScope* scope) {
  switch (statement.kind) {
    case JinjaStatement::Kind::kText:
      ALUDEL_RETURN_IF_ERROR(Emit(statement.text, statement.line));
      return Flow::kNext;
    case JinjaStatement::Kind::kOutput: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue value, expressions_.Evaluate(*statement.expression, scope));
      ALUDEL_RETURN_IF_ERROR(Emit(JinjaText(value), statement.line));
      return Flow::kNext;
    }
    case JinjaStatement::Kind::kIf: {
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue condition,
                              expressions_.Evaluate(*statement.expression, scope));
      return Run(condition.Truth() ? statement.body : statement.otherwise, scope);
    }
    case JinjaStatement::Kind::kFor:
      return For(statement, scope);
    case JinjaStatement::Kind::kSet: {
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, expressions_.Evaluate(*statement.expression, scope));
      ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, std::move(value), scope));
      return Flow::kNext;
    }
    case JinjaStatement::Kind::kSetBlock:
    case JinjaStatement::Kind::kFilterBlock: {
      JinjaScope inner{scope, {}};
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, Capture(statement.body, &inner));
      if (statement.expression != nullptr) {
        ALUDEL_ASSIGN_OR_RETURN(value, expressions_.Filter(*statement.expression, scope, &value));
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

absl::StatusOr<Renderer::Flow> Renderer::For(const JinjaStatement& statement, JinjaScope* scope) {
  ALUDEL_ASSIGN_OR_RETURN(const JinjaValue iterable, expressions_.Evaluate(*statement.expression, scope));
  absl::StatusOr<JinjaValue::List> all = JinjaIterate(iterable, &budget_);
  if (!all.ok()) return JinjaErrorAt(statement.line, all.status());
  JinjaValue::List items;
  if (statement.condition == nullptr) {
    items = *std::move(all);
  } else {
    for (JinjaValue& item : *all) {
      JinjaScope inner{scope, {}};
      ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, item, &inner));
      ALUDEL_ASSIGN_OR_RETURN(const JinjaValue condition,
                              expressions_.Evaluate(*statement.condition, &inner));
      if (condition.Truth()) items.push_back(std::move(item));
    }
  }
  if (items.empty()) return Run(statement.otherwise, scope);
  const auto loop = std::make_shared<Loop>(items);
  const JinjaValue loop_value = JinjaValue::MakeObject(loop);
  for (size_t i = 0; i < items.size(); ++i) {
    loop->MoveTo(i);
    JinjaScope inner{scope, {}};
    inner.Set("loop", loop_value);
    ALUDEL_RETURN_IF_ERROR(Assign(*statement.target, items[i], &inner));
    ALUDEL_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body, &inner));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

absl::Status Renderer::Assign(const JinjaExpression& target, JinjaValue value, JinjaScope* scope) {
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
  if (!items.ok()) return JinjaErrorAt(target.line, items.status());
  if (items->size() != target.children.size()) {
    return JinjaError(target.line,
                      absl::StrCat("cannot unpack ", items->size(), " values into ", target.children.size()));
  }
  for (size_t i = 0; i < items->size(); ++i) {
    ALUDEL_RETURN_IF_ERROR(Assign(*target.children[i], std::move((*items)[i]), scope));
  }
  return absl::OkStatus();
}

absl::StatusOr<Renderer::Flow> Renderer::With(const JinjaStatement& statement, JinjaScope* scope) {
  JinjaScope inner{scope, {}};
  for (size_t i = 0; i < statement.names.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, expressions_.Evaluate(*statement.expressions[i], scope));
    inner.Set(statement.names[i], std::move(value));
  }
  return Run(statement.body, &inner);
}

JinjaValue Renderer::MakeMacro(const JinjaStatement& statement, const JinjaScope* scope) {
  return JinjaValue::MakeFunction(statement.text, [this, &statement, scope](const JinjaArguments& arguments) {
    return CallMacro(statement, scope, arguments);
  });
}

Result Renderer::CallMacro(const JinjaStatement& statement, const JinjaScope* scope,
                           const JinjaArguments& arguments) {
  const size_t count = statement.names.size();
  const absl::string_view name = statement.text.empty() ? "caller" : absl::string_view(statement.text);
  if (arguments.positional.size() > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' got ", arguments.positional.size(), " arguments, wants at most ", count));
  }
  JinjaScope inner{scope, {}};
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
      ALUDEL_ASSIGN_OR_RETURN(value,
                              expressions_.Evaluate(*statement.expressions[i - first_default], &inner));
    }
    inner.Set(parameter, std::move(value));
  }
  return Capture(statement.body, &inner);
}

absl::Status Renderer::CallBlock(const JinjaStatement& statement, JinjaScope* scope) {
  const JinjaValue caller = MakeMacro(statement, scope);
  ALUDEL_ASSIGN_OR_RETURN(
      const JinjaValue value,
      JinjaErrorAt(statement.line, expressions_.Call(*statement.expression, scope, &caller)));
  return Emit(JinjaText(value), statement.line);
}

}  // namespace

absl::StatusOr<std::string> RenderJinja(const JinjaBody& body, const JinjaValue::Dict& context) {
  absl::StatusOr<std::string> text = Renderer().Render(body, context);
  if (absl::IsAborted(text.status())) return absl::InvalidArgumentError(text.status().message());
  return text;
}

}  // namespace aludel
