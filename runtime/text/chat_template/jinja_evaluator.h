#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/chat_template/jinja_ast.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_value.h"

namespace aludel {

// Names of one block. Lives on the stack of the evaluator: values only travel inwards and as text outwards.
struct JinjaScope {
  const JinjaScope* parent = nullptr;
  JinjaValue::Dict names;

  const JinjaValue* Find(const std::string& name) const {
    for (const JinjaScope* scope = this; scope != nullptr; scope = scope->parent) {
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

// Gives a builtin's error its line; the template's own errors and those that have one pass.
absl::Status JinjaErrorAt(int line, const absl::Status& status);
template <typename T>
absl::StatusOr<T> JinjaErrorAt(int line, absl::StatusOr<T> result) {
  if (!result.ok()) return JinjaErrorAt(line, result.status());
  return result;
}

// Values of expressions. Every one counts against the budget, and how deep they nest is bounded: statements
// count there too, because macros call them. Of one rendering; not thread-safe.
class JinjaEvaluator {
 public:
  using Result = absl::StatusOr<JinjaValue>;

  // `budget` must outlive it.
  explicit JinjaEvaluator(JinjaBudget& budget) : budget_(budget) {}

  Result Evaluate(const JinjaExpression& expression, const JinjaScope* scope);
  // A call whose callee finds `caller`, which may be null, among its arguments.
  Result Call(const JinjaExpression& expression, const JinjaScope* scope, const JinjaValue* caller);
  // `captured` stands for the operand that a filter chain over a block leaves out.
  Result Filter(const JinjaExpression& expression, const JinjaScope* scope, const JinjaValue* captured);

  // Around what evaluates further, one level deeper.
  absl::Status Enter(int line);
  void Leave() { --depth_; }

 private:
  Result EvaluateNode(const JinjaExpression& expression, const JinjaScope* scope);
  Result Compare(const JinjaExpression& expression, const JinjaScope* scope);
  Result Sign(const JinjaExpression& expression, const JinjaScope* scope);
  Result Concat(const JinjaExpression& expression, const JinjaScope* scope);
  Result Collection(const JinjaExpression& expression, const JinjaScope* scope);
  Result Dictionary(const JinjaExpression& expression, const JinjaScope* scope);
  Result Slice(const JinjaExpression& expression, const JinjaScope* scope);
  Result Test(const JinjaExpression& expression, const JinjaScope* scope);
  absl::StatusOr<JinjaArguments> Arguments(const JinjaExpression& expression, const JinjaScope* scope);

  JinjaBudget& budget_;
  int depth_ = 0;
};

}  // namespace aludel
