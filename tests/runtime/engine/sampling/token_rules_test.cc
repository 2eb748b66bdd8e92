#include "runtime/engine/sampling/token_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr int kVocab = 8;

std::vector<uint64_t> Mask(const std::vector<int32_t>& ids) {
  std::vector<uint64_t> mask(1);
  for (const int32_t id : ids) mask[0] |= uint64_t{1} << id;
  return mask;
}

// The tokens that a rule set leaves, by its definition.
bool MayFollow(const TokenRuleSet& rules, const std::vector<int32_t>& answer, int32_t token) {
  const auto holds = [](const std::vector<int32_t>& ids, int32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if (!rules.allowed.empty() && (rules.allowed[0] >> token & 1) == 0) return false;
  if (static_cast<int64_t>(answer.size()) < rules.late_from && holds(rules.late, token)) return false;
  std::vector<int32_t> longer = answer;
  longer.push_back(token);
  return std::none_of(rules.never.begin(), rules.never.end(), [&](const std::vector<int32_t>& run) {
    return run.size() <= longer.size() && std::equal(run.begin(), run.end(), longer.end() - run.size());
  });
}

TEST(TokenRules, LeaveWhatTheDefinitionLeaves) {
  std::mt19937 random(std::random_device{}());
  const auto below = [&random](int end) { return static_cast<int32_t>(random() % end); };
  for (int round = 0; round < 200; ++round) {
    TokenRuleSet rules;
    for (int i = below(3); i > 0; --i) {
      rules.never.emplace_back();
      for (int length = 1 + below(3); length > 0; --length) rules.never.back().push_back(below(3));
    }
    if (below(2) == 0) rules.allowed = Mask({0, 1, 2, below(kVocab)});
    rules.late = {below(kVocab)};
    rules.late_from = below(6);
    TokenRules subject(std::make_shared<const TokenRuleSet>(rules));
    std::vector<int32_t> answer;
    while (answer.size() < 20) {
      std::vector<float> row(kVocab, 1.0f);
      if (subject.restrict_next()) subject.Apply(absl::MakeSpan(row));
      for (int32_t id = 0; id < kVocab; ++id) {
        ASSERT_EQ(row[id], MayFollow(rules, answer, id) ? 1.0f : -std::numeric_limits<float>::infinity())
            << "token " << id << " after " << answer.size();
      }
      answer.push_back(below(3));  // whatever came, forced tokens too
      subject.Accept(answer.back());
    }
  }
}

TEST(TokenRules, RestrictNothingWithoutRulesOrOnceTheyArePast) {
  EXPECT_FALSE(TokenRules(nullptr).restrict_next());
  TokenRules rules(std::make_shared<const TokenRuleSet>(TokenRuleSet{.late = {1}, .late_from = 2}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(rules.restrict_next());
    rules.Accept(0);
  }
  EXPECT_FALSE(rules.restrict_next());
}

TEST(TokenRules, LeaveWhatIsNoNumber) {
  TokenRules rules(std::make_shared<const TokenRuleSet>(TokenRuleSet{.never = {{1}}}));
  std::vector<float> row = {0, std::numeric_limits<float>::quiet_NaN()};
  rules.Apply(absl::MakeSpan(row));
  EXPECT_TRUE(std::isnan(row[1]));
}

// Which tokens a row of zeros leaves.
std::vector<int32_t> Left(const TokenRules& rules) {
  std::vector<float> row(kVocab);
  if (rules.restrict_next()) rules.Apply(absl::MakeSpan(row));
  std::vector<int32_t> left;
  for (int32_t id = 0; id < kVocab; ++id) {
    if (row[id] == 0) left.push_back(id);
  }
  return left;
}

TEST(TokenRules, ThoughtsEndWithTheirBudget) {
  TokenRuleSet set;
  set.allowed = Mask({1, 2, 3, 6});
  set.thinking = {.tokens = 2, .begin = 6, .end = 7};
  const std::vector<int32_t> free = {1, 2, 3, 6};
  TokenRules thinks(std::make_shared<const TokenRuleSet>(set));
  for (const int32_t token : {6, 1, 2}) {
    EXPECT_EQ(Left(thinks), free);
    thinks.Accept(token);
  }
  EXPECT_EQ(Left(thinks), std::vector<int32_t>{7});  // although it is not allowed
  thinks.Accept(7);
  EXPECT_EQ(Left(thinks), free);
  thinks.Accept(6);  // no second time
  thinks.Accept(1);
  thinks.Accept(2);
  EXPECT_EQ(Left(thinks), free);
}

TEST(TokenRules, ABudgetIsOfThoughtsAlone) {
  TokenRuleSet set;
  set.thinking = {.tokens = 1, .begin = 6, .end = 7};
  TokenRules answers(std::make_shared<const TokenRuleSet>(set));
  for (const int32_t token : {1, 6, 2, 3}) answers.Accept(token);
  EXPECT_FALSE(answers.restrict_next());
  set.thinking->begin = ThinkingLimit::kNoBegin;
  set.thinking->tokens = 0;
  TokenRules begun(std::make_shared<const TokenRuleSet>(set));
  EXPECT_EQ(Left(begun), std::vector<int32_t>{7});
  set.thinking->tokens = 3;
  TokenRules ends(std::make_shared<const TokenRuleSet>(set));
  for (const int32_t token : {1, 7, 2, 3, 4}) ends.Accept(token);
  EXPECT_FALSE(ends.restrict_next());
}

}  // namespace
}  // namespace aludel
