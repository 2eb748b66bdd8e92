#include "runtime/engine/engine_masks.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/text/constrain/text_constraint.h"

namespace aludel {
namespace {

class EngineMasksTest : public ::testing::Test {
 protected:
  std::shared_ptr<TokenAutomaton> Automaton(const std::string& schema) {
    return std::make_shared<TokenAutomaton>(CompileConstraint({"", schema, ""}).value(), table_);
  }
  Sequence& Add(const std::shared_ptr<TokenAutomaton>& automaton) {
    auto group = std::make_shared<ChoiceGroup>();
    group->constraint = automaton;
    auto sequence = std::make_unique<Sequence>(std::vector<int32_t>{1, 2}, 8, nullptr, std::move(group), 0,
                                               tokenizer_.get());
    sequence->constraint = std::make_unique<TokenAutomaton::Cursor>(automaton.get());
    sequence->id = sequences_.size() + 1;
    return *sequences_.emplace(sequence->id, std::move(sequence)).first->second;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Load("deploy/demo/chat").value();
  const std::shared_ptr<const TokenTable> table_ =
      std::make_shared<TokenTable>(*tokenizer_, std::vector<int>{2}, tokenizer_->vocab_size());
  SequenceMap sequences_;
  EngineMasks masks_;
};

// Strings that begin alike and are counted apart: hundreds of ways are open at every byte.
std::string ManyWays() {
  std::string schema = "{\"anyOf\":[{\"type\":\"boolean\"}";
  for (int i = 0; i < 250; ++i)
    absl::StrAppend(&schema, ",{\"type\":\"string\",\"minLength\":", 20 + i % 100, "}");
  return schema + "]}";
}

TEST_F(EngineMasksTest, MakesOthersMasksWhileAnExpensiveOneIsInTheMaking) {
  const std::shared_ptr<TokenAutomaton> hostile = Automaton(ManyWays());
  const int32_t quote = tokenizer_->Encode("\"", false, "").value().back();
  for (int i = 0; i < 16; ++i) {
    Sequence& one = Add(hostile);
    one.constraint->Mask();
    one.constraint->Accept(quote);
  }
  Sequence& plain = Add(Automaton(R"({"type": "string"})"));
  Sequence& free = Add(Automaton("true"));
  free.constraint = nullptr;
  const int64_t before = hostile->counts().steps;
  masks_.Prepare(sequences_);
  EXPECT_TRUE(masks_.pending());
  EXPECT_LE(hostile->counts().steps - before, EngineMasks::kSteps + TokenAutomaton::kMaxTransitionSteps);
  EXPECT_TRUE(sequences_.at(1)->lacks_mask);
  EXPECT_FALSE(plain.lacks_mask);
  EXPECT_FALSE(free.lacks_mask);
  int calls = 1;
  for (; masks_.pending() && calls < 10000; ++calls) masks_.Prepare(sequences_);
  EXPECT_FALSE(sequences_.at(1)->lacks_mask);
  EXPECT_FALSE(sequences_.at(16)->lacks_mask);
  EXPECT_GT(calls, 2);
}

}  // namespace
}  // namespace aludel
