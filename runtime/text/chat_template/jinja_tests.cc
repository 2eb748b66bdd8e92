#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_strings.h"

namespace aludel {
namespace {

using Kind = JinjaValue::Kind;

// Tests without an argument.
struct PlainTest {
  absl::string_view name;
  bool (*holds)(const JinjaValue&);
};
constexpr PlainTest kPlainTests[] = {
    {"boolean", [](const JinjaValue& v) { return v.kind() == Kind::kBool; }},
    {"callable", [](const JinjaValue& v) { return v.kind() == Kind::kFunction; }},
    {"defined", [](const JinjaValue& v) { return !v.is_undefined(); }},
    {"false", [](const JinjaValue& v) { return v.kind() == Kind::kBool && !v.Truth(); }},
    {"float", [](const JinjaValue& v) { return v.kind() == Kind::kFloat; }},
    {"integer", [](const JinjaValue& v) { return v.kind() == Kind::kInt; }},
    {"iterable",
     [](const JinjaValue& v) { return v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined(); }},
    {"lower",
     [](const JinjaValue& v) {
       return LowerCase(JinjaText(v)) == JinjaText(v) && UpperCase(JinjaText(v)) != JinjaText(v);
     }},
    {"mapping", [](const JinjaValue& v) { return v.is_dict(); }},
    {"none", [](const JinjaValue& v) { return v.is_none(); }},
    {"number", [](const JinjaValue& v) { return v.is_number(); }},
    {"sequence",
     [](const JinjaValue& v) { return v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined(); }},
    {"string", [](const JinjaValue& v) { return v.is_string(); }},
    {"true", [](const JinjaValue& v) { return v.kind() == Kind::kBool && v.Truth(); }},
    {"undefined", [](const JinjaValue& v) { return v.is_undefined(); }},
    {"upper",
     [](const JinjaValue& v) {
       return UpperCase(JinjaText(v)) == JinjaText(v) && LowerCase(JinjaText(v)) != JinjaText(v);
     }},
};

// Comparisons under all their names.
constexpr struct {
  absl::string_view name;
  absl::string_view operation;
} kComparisons[] = {{"==", "eq"},       {"eq", "eq"}, {"equalto", "eq"},     {"!=", "ne"}, {"ne", "ne"},
                    {"<", "lt"},        {"lt", "lt"}, {"lessthan", "lt"},    {"<=", "le"}, {"le", "le"},
                    {">", "gt"},        {"gt", "gt"}, {"greaterthan", "gt"}, {">=", "ge"}, {"ge", "ge"},
                    {"sameas", "same"}, {"in", "in"}};

absl::string_view FindComparison(absl::string_view name) {
  for (const auto& known : kComparisons) {
    if (known.name == name) return known.operation;
  }
  return "";
}

absl::StatusOr<bool> CompareTest(absl::string_view operation, const JinjaValue& a, const JinjaValue& b) {
  if (operation == "eq") return JinjaEquals(a, b);
  if (operation == "ne") return !JinjaEquals(a, b);
  if (operation == "in") return JinjaContains(b, a);
  if (operation == "same") return a.kind() == b.kind() && JinjaEquals(a, b);
  ALUDEL_ASSIGN_OR_RETURN(const int order, JinjaCompare(a, b));
  if (operation == "lt") return order < 0;
  if (operation == "le") return order <= 0;
  if (operation == "gt") return order > 0;
  return order >= 0;
}

// even, odd and divisibleby.
absl::StatusOr<bool> DivisionTest(const std::string& name, const JinjaValue& value,
                                  const JinjaArguments& arguments) {
  int64_t divisor = 2;
  if (name == "divisibleby") {
    ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"num"}));
    if (bound[0] == nullptr || !bound[0]->is_integral() || bound[0]->AsInt() == 0) {
      return absl::InvalidArgumentError("divisibleby wants an integer other than 0");
    }
    divisor = bound[0]->AsInt();
  }
  if (!value.is_integral()) return absl::InvalidArgumentError(absl::StrCat(name, " of ", value.Describe()));
  if (divisor == -1) return true;  // and INT64_MIN % -1 would trap
  return (value.AsInt() % divisor == 0) != (name == "odd");
}

}  // namespace

bool IsJinjaTest(absl::string_view name) {
  const auto is_name = [&](const PlainTest& test) { return test.name == name; };
  return std::any_of(std::begin(kPlainTests), std::end(kPlainTests), is_name) ||
         !FindComparison(name).empty() || name == "even" || name == "odd" || name == "divisibleby" ||
         name == "filter" || name == "test";
}

absl::StatusOr<bool> ApplyJinjaTest(const std::string& name, const JinjaValue& operand,
                                    const JinjaArguments& arguments) {
  for (const PlainTest& test : kPlainTests) {
    if (test.name == name) return test.holds(operand);
  }
  if (name == "filter") return operand.is_string() && IsJinjaFilter(operand.AsString());
  if (name == "test") return operand.is_string() && IsJinjaTest(operand.AsString());
  if (name == "even" || name == "odd" || name == "divisibleby") return DivisionTest(name, operand, arguments);
  ALUDEL_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"other"}));
  if (bound[0] == nullptr) return absl::InvalidArgumentError(absl::StrCat("test '", name, "' wants a value"));
  return CompareTest(FindComparison(name), operand, *bound[0]);
}

}  // namespace aludel
