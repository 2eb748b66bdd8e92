#include "runtime/engine/token_rules.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace aludel {
namespace {

// Added, so that what is no number stays none.
void RuleOut(float* logit) { *logit += -std::numeric_limits<float>::infinity(); }

}  // namespace

TokenRules::TokenRules(TokenRuleSet rules) : rules_(std::move(rules)) {
  for (const std::vector<int32_t>& run : rules_.never) longest_ = std::max(longest_, run.size());
}

bool TokenRules::restrict_next() const {
  return !rules_.allowed.empty() || !rules_.never.empty() ||
         (!rules_.late.empty() && accepted_ < rules_.late_from);
}

void TokenRules::Apply(absl::Span<float> row) const {
  if (!rules_.allowed.empty()) {
    std::vector<bool> allowed(row.size());
    for (const int32_t id : rules_.allowed) allowed[id] = true;
    for (size_t i = 0; i < row.size(); ++i) {
      if (!allowed[i]) RuleOut(&row[i]);
    }
  }
  if (accepted_ < rules_.late_from) {
    for (const int32_t id : rules_.late) RuleOut(&row[id]);
  }
  for (const std::vector<int32_t>& run : rules_.never) {
    const size_t before = run.size() - 1;
    if (before <= recent_.size() && std::equal(run.begin(), run.end() - 1, recent_.end() - before)) {
      RuleOut(&row[run.back()]);
    }
  }
}

void TokenRules::Accept(int32_t token) {
  ++accepted_;
  if (longest_ < 2) return;
  if (recent_.size() == longest_ - 1) recent_.erase(recent_.begin());
  recent_.push_back(token);
}

}  // namespace aludel
