#include "runtime/text/constrain/multiple_rules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/json_rules.h"

namespace aludel {
namespace {

using NodeId = GrammarBuilder::NodeId;

constexpr int64_t kStepsPerMultipleState = 16;

std::array<int64_t, JsonRules::kMaxDigits + 1> Powers() {
  std::array<int64_t, JsonRules::kMaxDigits + 1> powers = {1};
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * 10;
  return powers;
}
const std::array<int64_t, JsonRules::kMaxDigits + 1> kPowers = Powers();

}  // namespace

MultipleRules::MultipleRules(GrammarBuilder* builder, StepBudget* budget, int64_t divisor, NodeId next)
    : builder_(builder), budget_(budget), zero_(next), end_(next), divisor_(divisor) {
  while (divisor_ % 10 == 0) {
    divisor_ /= 10;
    zeros_ *= 10;
    end_ = builder_->Literal("0", end_);
  }
}

bool MultipleRules::CanDivideBy(int64_t divisor) {
  if (divisor <= 0) return false;
  while (divisor % 10 == 0) divisor /= 10;
  return divisor <= kMaxDivisor;
}

absl::StatusOr<std::optional<NodeId>> MultipleRules::Between(int64_t min, int64_t max) {
  std::vector<NodeId> ways;
  if (min <= 0 && max >= 0) ways.push_back(builder_->Literal("0", zero_));
  if (max > 0) {
    ALUDEL_ASSIGN_OR_RETURN(const auto naturals, Naturals(std::max<int64_t>(min, 1), max));
    if (naturals) ways.push_back(*naturals);
  }
  if (min < 0) {
    ALUDEL_ASSIGN_OR_RETURN(const auto naturals, Naturals(std::max<int64_t>(1, -max), -min));
    if (naturals) ways.push_back(builder_->Literal("-", *naturals));
  }
  if (ways.empty()) return std::nullopt;
  return builder_->OneOf(ways);
}

absl::StatusOr<std::optional<NodeId>> MultipleRules::Naturals(int64_t min, int64_t max) {
  min = (min + zeros_ - 1) / zeros_;
  max = max / zeros_;
  std::vector<NodeId> ways;
  for (length_ = 1; length_ <= JsonRules::kMaxDigits; ++length_) {
    least_ = std::max(min, kPowers[length_ - 1]);
    greatest_ = std::min(max, kPowers[length_] - 1);
    if (least_ > greatest_) continue;
    ALUDEL_ASSIGN_OR_RETURN(const NodeId node, Digits(length_, 0, true, true));
    if (node >= 0) ways.push_back(node);
  }
  if (ways.empty()) return std::nullopt;
  return builder_->OneOf(ways);
}

absl::StatusOr<NodeId> MultipleRules::Digits(int digits, int64_t rest, bool low, bool high) {
  if (digits == 0) return rest == 0 ? end_ : -1;
  const bool free = !low && !high;
  const int64_t key = rest * (JsonRules::kMaxDigits + 1) + digits;
  if (free) {
    if (const auto known = free_.find(key); known != free_.end()) return known->second;
  }
  ALUDEL_RETURN_IF_ERROR(budget_->Spend(kStepsPerMultipleState));
  const int64_t power = kPowers[digits - 1];
  const int first = low ? static_cast<int>(least_ / power % 10) : 0;
  const int last = high ? static_cast<int>(greatest_ / power % 10) : 9;
  std::vector<std::pair<NodeId, ByteSet>> targets;
  for (int digit = first; digit <= last; ++digit) {
    ALUDEL_ASSIGN_OR_RETURN(const NodeId to, Digits(digits - 1, (rest * 10 + digit) % divisor_,
                                                    low && digit == first, high && digit == last));
    if (to < 0) continue;
    const auto known =
        std::find_if(targets.begin(), targets.end(), [to](const auto& target) { return target.first == to; });
    (known == targets.end() ? targets.emplace_back(to, ByteSet()) : *known).second.set('0' + digit);
  }
  std::vector<NodeId> ways;
  for (const auto& [to, set] : targets) ways.push_back(builder_->Class(set, to));
  const NodeId node = ways.empty() ? -1 : builder_->OneOf(ways);
  if (free) free_[key] = node;
  return node;
}

}  // namespace aludel
