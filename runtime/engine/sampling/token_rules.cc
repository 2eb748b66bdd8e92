#include "runtime/engine/sampling/token_rules.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace aludel {
namespace {

// Added, so that what is no number stays none.
void RuleOut(float* logit) { *logit += -std::numeric_limits<float>::infinity(); }

}  // namespace

void ApplyTokenMask(absl::Span<const uint64_t> allowed, absl::Span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    if ((allowed[i / 64] >> (i % 64) & 1) == 0) RuleOut(&row[i]);
  }
}

TokenRules::TokenRules(std::shared_ptr<const TokenRuleSet> rules) : rules_(std::move(rules)) {
  if (rules_ == nullptr) return;
  for (const std::vector<int32_t>& run : rules_->never) longest_ = std::max(longest_, run.size());
  thinking_ = rules_->thinking && rules_->thinking->begin == ThinkingLimit::kNoBegin;
}

bool TokenRules::must_end_thinking() const { return thinking_ && thought_ >= rules_->thinking->tokens; }

bool TokenRules::restrict_next() const {
  if (rules_ == nullptr) return false;
  return !rules_->allowed.empty() || !rules_->never.empty() || must_end_thinking() ||
         (!rules_->late.empty() && accepted_ < rules_->late_from);
}

void TokenRules::Apply(absl::Span<float> row) const {
  if (rules_ == nullptr) return;
  // A constraint that does not allow the end there has the last word.
  if (must_end_thinking() && row[rules_->thinking->end] > -std::numeric_limits<float>::infinity()) {
    for (size_t id = 0; id < row.size(); ++id) {
      if (static_cast<int32_t>(id) != rules_->thinking->end) RuleOut(&row[id]);
    }
    return;  // whatever else would rule it out
  }
  if (!rules_->allowed.empty()) ApplyTokenMask(rules_->allowed, row);
  if (accepted_ < rules_->late_from) {
    for (const int32_t id : rules_->late) RuleOut(&row[id]);
  }
  for (const std::vector<int32_t>& run : rules_->never) {
    const size_t before = run.size() - 1;
    if (before <= recent_.size() && std::equal(run.begin(), run.end() - 1, recent_.end() - before)) {
      RuleOut(&row[run.back()]);
    }
  }
}

void TokenRules::Accept(int32_t token) {
  ++accepted_;
  if (rules_ != nullptr && rules_->thinking) {
    const ThinkingLimit& limit = *rules_->thinking;
    if (thinking_) {
      ++thought_;
      thinking_ = token != limit.end;
    } else {
      thinking_ = accepted_ == 1 && token == limit.begin;
    }
  }
  if (longest_ < 2) return;
  if (recent_.size() == longest_ - 1) recent_.erase(recent_.begin());
  recent_.push_back(token);
}

}  // namespace aludel
