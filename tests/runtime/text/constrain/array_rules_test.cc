#include "runtime/text/constrain/array_rules.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/constrain/language.h"

namespace aludel {
namespace {

using NodeId = ArrayRules::NodeId;
using Rule = ArrayRules::Rule;

// The arrays that one call makes.
class Arrays {
 public:
  explicit Arrays(const std::function<absl::StatusOr<NodeId>(Arrays*)>& make) {
    const absl::StatusOr<NodeId> node = make(this);
    EXPECT_TRUE(node.ok()) << node.status();
    if (!node.ok() || *node < 0) return;
    language_.emplace(*builder_.Finish(builder_.MakeRule(*node)));
  }
  ArrayRules& rules() { return rules_; }
  Rule Of(absl::string_view text) { return builder_.MakeRule(builder_.Literal(text, builder_.ReturnNode())); }
  bool Any() const { return language_.has_value(); }
  void Expect(const std::vector<std::string>& in, const std::vector<std::string>& out) {
    ASSERT_TRUE(Any());
    for (const std::string& text : in) EXPECT_TRUE(language_->Has(text)) << text;
    for (const std::string& text : out) EXPECT_FALSE(language_->Has(text)) << text;
  }

 private:
  GrammarBuilder builder_;
  JsonRules json_{&builder_};
  StepBudget budget_{kMaxCompileSteps};
  ArrayRules rules_{&builder_, &json_, &budget_};
  std::optional<Language> language_;
};

TEST(ArrayRules, ListsItemsAndThenOthers) {
  Arrays closed([](Arrays* a) { return a->rules().Listed({a->Of("1"), a->Of("2")}, -1, 1, 2); });
  closed.Expect({"[1]", "[1,2]", "[ 1, 2 ]"}, {"[]", "[2]", "[1,2,3]", "[1,2,2]"});
  Arrays open([](Arrays* a) { return a->rules().Listed({a->Of("1")}, a->Of("3"), 0, 3); });
  open.Expect({"[]", "[1]", "[1,3,3]"}, {"[3]", "[1,3,3,3]", "[1,1]"});
  Arrays long_ones([](Arrays* a) { return a->rules().Listed({a->Of("1")}, a->Of("3"), 3, -1); });
  long_ones.Expect({"[1,3,3]", "[1,3,3,3,3]"}, {"[]", "[1]", "[1,3]"});
}

TEST(ArrayRules, TakesEachValueOnce) {
  Arrays any([](Arrays* a) { return a->rules().Unique({"1", "2", "3"}, 0, -1); });
  any.Expect({"[]", "[2]", "[3,1]", "[2,1,3]"}, {"[1,1]", "[1,2,1]", "[4]"});
  Arrays two([](Arrays* a) { return a->rules().Unique({"1", "2", "3"}, 2, 2); });
  two.Expect({"[1,2]", "[3,2]"}, {"[]", "[1]", "[1,2,3]", "[2,2]"});
}

TEST(ArrayRules, CountsItemsOfOneKind) {
  Arrays some([](Arrays* a) {
    return a->rules().WithCounted(
        {.counted = a->Of("1"), .other = a->Of("0"), .least = 1, .counted_least = 2, .counted_most = 3});
  });
  some.Expect({"[1,1]", "[0,1,0,1]", "[1,1,1,0,0]"}, {"[]", "[1]", "[0,0,1]", "[1,1,1,1]"});
  Arrays all([](Arrays* a) {
    return a->rules().WithCounted({.counted = a->Of("1"), .most = 3, .counted_least = 2});
  });
  all.Expect({"[1,1]", "[1,1,1]"}, {"[]", "[1]", "[1,1,1,1]"});
}

TEST(ArrayRules, SaysWhereNoArrayIsLeft) {
  EXPECT_FALSE(Arrays([](Arrays* a) {
                 return a->rules().WithCounted({.other = a->Of("0"), .counted_least = 1});
               }).Any());
  EXPECT_FALSE(Arrays([](Arrays* a) {
                 return a->rules().WithCounted({.counted = a->Of("1"), .most = 1, .counted_least = 2});
               }).Any());
}

}  // namespace
}  // namespace aludel
