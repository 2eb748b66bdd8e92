#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/multiple_rules.h"
#include "runtime/text/constrain/schema/schema_tools.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using NodeId = GrammarBuilder::NodeId;

// Integers that are refused, ascending; what is too large to be written is left out.
absl::StatusOr<std::vector<int64_t>> RefusedIntegers(const Exclusions& refused, bool fractions,
                                                     const SchemaPlace& where) {
  std::vector<int64_t> integers;
  for (const ordered_json* value : refused.ValuesOf(kInteger | kFraction)) {
    if (TypeOfValue(*value) == kFraction) {
      if (!fractions) continue;
      return SchemaError(where, absl::StrCat("\"not\" of ", value->dump(), " is not supported for numbers"));
    }
    const double whole = value->get<double>();
    if (std::abs(whole) <= static_cast<double>(JsonRules::kMaxInteger)) {
      integers.push_back(static_cast<int64_t>(whole));
    }
  }
  std::sort(integers.begin(), integers.end());
  return integers;
}

}  // namespace

absl::StatusOr<NodeId> CompileNumber(const SchemaTools& tools, const ordered_json& schema, TypeSet types,
                                     const Exclusions& refused, const SchemaPlace& where) {
  const NodeId end = tools.builder->ReturnNode();
  ALUDEL_ASSIGN_OR_RETURN(const int64_t divisor, ReadDivisor(schema, where));
  const bool divided = schema.contains("multipleOf");
  const bool fractions = (types & kFraction) != 0 && !divided;
  if (divided && (types & kInteger) == 0) return SchemaError(where, "its keywords leave no number");
  ALUDEL_ASSIGN_OR_RETURN(const NumberBounds bounds, ReadNumberBounds(schema, fractions, where));
  if ((types & kInteger) == 0) {
    if (bounds.min == bounds.max) return SchemaError(where, "its keywords leave no number");
    ALUDEL_RETURN_IF_ERROR(RefusedIntegers(refused, fractions, where).status());
    return tools.json->Fractions(bounds.min, bounds.max, end);
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<int64_t> gaps, RefusedIntegers(refused, fractions, where));
  if (fractions && !bounds.given && gaps.empty()) return tools.json->Number(end);
  std::optional<MultipleRules> multiples;
  if (divisor > 1) multiples.emplace(tools.builder, tools.budget, divisor, end);
  // Between two gaps each; without fractions the ends belong to it.
  std::vector<NodeId> ways;
  const auto add = [&](int64_t min, int64_t max, bool at_min, bool at_max) -> absl::Status {
    ALUDEL_RETURN_IF_ERROR(tools.budget->Spend(64));
    if (min > max || (min == max && !(at_min && at_max))) return absl::OkStatus();
    if (fractions) {
      ways.push_back(tools.json->BoundedNumber(min, max, at_min, at_max, end));
    } else if (!multiples) {
      ways.push_back(tools.json->Integer(min, max, end));
    } else {
      ALUDEL_ASSIGN_OR_RETURN(const auto node, multiples->Between(min, max));
      if (node) ways.push_back(*node);
    }
    return absl::OkStatus();
  };
  int64_t min = bounds.min;
  bool at_min = bounds.at_min;
  for (const int64_t gap : gaps) {
    if (gap < min || gap > bounds.max || (gap == min && !at_min)) continue;
    ALUDEL_RETURN_IF_ERROR(fractions ? add(min, gap, at_min, false) : add(min, gap - 1, true, true));
    min = fractions ? gap : gap + 1;
    at_min = !fractions;
  }
  ALUDEL_RETURN_IF_ERROR(add(min, bounds.max, at_min, bounds.at_max));
  if (ways.empty()) return SchemaError(where, "its keywords leave no number");
  return tools.builder->OneOf(ways);
}

}  // namespace aludel
