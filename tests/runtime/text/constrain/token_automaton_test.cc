#include "runtime/text/constrain/token_automaton.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/text_constraint.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"
#include "tests/runtime/text/constrain/random_schema.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

bool Allows(absl::Span<const uint64_t> mask, int32_t id) { return (mask[id / 64] >> (id % 64) & 1) != 0; }

std::shared_ptr<const TokenTable> Table(const Tokenizer& tokenizer, int eos) {
  return std::make_shared<TokenTable>(tokenizer, std::vector<int>{eos}, tokenizer.vocab_size());
}

std::unique_ptr<TokenAutomaton> Automaton(const std::string& schema,
                                          std::shared_ptr<const TokenTable> table) {
  return std::make_unique<TokenAutomaton>(CompileConstraint({"", schema, ""}).value(), std::move(table));
}

TEST(TokenAutomaton, MasksTokensOfManyBytesAsTheirBytesWould) {
  const ByteTokenizer tokenizer(
      {"{\"", "\":", "true", "tr", "ue}", "}", "}}", "{\"a\": true}", "abc", "\xc3", ""});
  const auto automaton = Automaton(R"({"type": "object", "properties": {"a": {"type": "boolean"}}})",
                                   Table(tokenizer, ByteTokenizer::kEnd));
  const auto id = [](int index) { return ByteTokenizer::kEnd + 1 + index; };
  TokenAutomaton::Cursor cursor(automaton.get());
  EXPECT_TRUE(Allows(cursor.Mask(), id(0)));
  EXPECT_TRUE(Allows(cursor.Mask(), id(7)));
  for (const int index : {1, 2, 3, 4, 5, 6, 8, 9, 10})
    EXPECT_FALSE(Allows(cursor.Mask(), id(index))) << index;
  EXPECT_FALSE(Allows(cursor.Mask(), ByteTokenizer::kEnd));
  cursor.Accept(id(0));
  cursor.Accept('a');
  cursor.Accept(id(1));
  EXPECT_TRUE(Allows(cursor.Mask(), id(2)));
  EXPECT_TRUE(Allows(cursor.Mask(), id(3)));
  cursor.Accept(id(3));
  EXPECT_TRUE(Allows(cursor.Mask(), id(4)));
  EXPECT_FALSE(cursor.complete());
  cursor.Accept(id(4));
  EXPECT_TRUE(cursor.complete());
  EXPECT_TRUE(Allows(cursor.Mask(), ByteTokenizer::kEnd));
}

TEST(TokenAutomaton, MakesAMaskOnceForAllSequences) {
  const ByteTokenizer tokenizer;
  const auto automaton = Automaton(R"({"type": "string"})", Table(tokenizer, ByteTokenizer::kEnd));
  for (int round = 0; round < 3; ++round) {
    TokenAutomaton::Cursor cursor(automaton.get());
    for (const char byte : std::string("\"abcabcabc")) {
      ASSERT_TRUE(Allows(cursor.Mask(), byte));
      cursor.Accept(byte);
    }
    cursor.Mask();
  }
  // Before the quote, and inside the string.
  EXPECT_EQ(automaton->counts().walks, 2u);
}

TEST(TokenAutomaton, IsBoundedHoweverDeepTheTextsAre) {
  const ByteTokenizer tokenizer;
  const auto automaton = Automaton("true", Table(tokenizer, ByteTokenizer::kEnd));
  TokenAutomaton::Cursor other(automaton.get());
  other.Accept('[');
  std::mt19937 random(5);
  const int depth = static_cast<int>(TokenAutomaton::kMaxStates);
  TokenAutomaton::Cursor cursor(automaton.get());
  std::string closing;
  for (int i = 0; i < depth; ++i) {
    const bool array = random() % 2 == 0;
    for (const char byte : std::string(array ? "[" : "{\"\":")) {
      ASSERT_TRUE(Allows(cursor.Mask(), byte)) << i;
      cursor.Accept(byte);
    }
    closing.insert(closing.begin(), array ? ']' : '}');
    ASSERT_LE(automaton->counts().states, TokenAutomaton::kMaxStates + 64);
  }
  EXPECT_GT(automaton->counts().restarts, 0u);
  cursor.Accept('1');
  for (const char byte : closing) {
    ASSERT_TRUE(Allows(cursor.Mask(), byte));
    ASSERT_FALSE(Allows(cursor.Mask(), byte == ']' ? '}' : ']'));
    cursor.Accept(byte);
  }
  EXPECT_TRUE(cursor.complete());
  EXPECT_TRUE(Allows(other.Mask(), ']'));
  EXPECT_FALSE(Allows(other.Mask(), '}'));
}

// A model that knows nothing: every allowed token is as likely as any other.
TEST(TokenAutomaton, GivesValidTextsForRandomSchemasAndRandomTokens) {
  const auto tokenizer = Tokenizer::Load("deploy/demo/chat").value();
  constexpr int kEos = 2;
  const auto table = Table(*tokenizer, kEos);
  int complete = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const nlohmann::ordered_json schema = RandomSchema(seed);
    const auto automaton = Automaton(schema.dump(), table);
    TokenAutomaton::Cursor cursor(automaton.get());
    std::string text;
    bool ended = false;
    for (int step = 0; step < 400 && !ended; ++step) {
      const absl::Span<const uint64_t> mask = cursor.Mask();
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
        if (Allows(mask, id)) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty()) << schema << " after " << text;
      const int32_t id = allowed[random() % allowed.size()];
      if (id == kEos || (Allows(mask, kEos) && random() % 2 == 0)) {
        ended = true;
      } else {
        cursor.Accept(id);
        text += tokenizer->TokenBytes(id);
      }
    }
    if (!ended) continue;
    ++complete;
    const auto value = nlohmann::ordered_json::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << text;
    EXPECT_TRUE(Validates(schema, schema, value)) << schema << " against " << text;
  }
  EXPECT_GT(complete, 150);
}

// Each level can be entered by two branches that begin alike: two to the power of the level ways are open.
TEST(TokenAutomaton, FailsATextThatLeavesTooManyWaysOpen) {
  const char* schema = R"({"$defs":{
      "a":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"},{"type":"null"}]},"y":{}}},
      "b":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"},{"type":"null"}]},"z":{}}}},
      "$ref":"#/$defs/a"})";
  const ByteTokenizer tokenizer;
  const auto automaton = Automaton(schema, Table(tokenizer, ByteTokenizer::kEnd));
  ASSERT_TRUE(automaton->CheckStart().ok());
  TokenAutomaton::Cursor cursor(automaton.get());
  const double start = ThreadCpuSeconds();
  const auto allows = [&cursor](char byte) {
    const absl::Span<const uint64_t> mask = cursor.Mask();
    return !mask.empty() && Allows(mask, static_cast<uint8_t>(byte));
  };
  int levels = 0;
  bool open = true;
  for (; open && levels < 100; ++levels) {
    for (const char byte : std::string("{\"x\":")) {
      open = open && allows(byte);
      if (open) cursor.Accept(static_cast<uint8_t>(byte));
    }
  }
  EXPECT_GT(levels, 8);
  EXPECT_LT(levels, 16);
  EXPECT_THAT(std::string(cursor.status().message()), testing::HasSubstr("ways open"));
  EXPECT_LT(ThreadCpuSeconds() - start, 5);
}

TEST(TokenAutomaton, SaysThatATextCannotBeginInTooManyWays) {
  std::string schema = "{\"anyOf\":[true";
  for (int i = 0; i < 6000; ++i) absl::StrAppend(&schema, ",{\"maxLength\":", i % 7 + 1, "}");
  const ByteTokenizer tokenizer;
  const auto automaton = Automaton(schema + "]}", Table(tokenizer, ByteTokenizer::kEnd));
  EXPECT_TRUE(absl::IsFailedPrecondition(automaton->CheckStart()));
  TokenAutomaton::Cursor cursor(automaton.get());
  EXPECT_TRUE(cursor.Mask().empty());
  EXPECT_FALSE(cursor.complete());
}

// Strings that begin alike and are counted apart: hundreds of ways are open at every byte.
std::string ManyWays() {
  std::string schema = "{\"anyOf\":[{\"type\":\"boolean\"}";
  for (int i = 0; i < 200; ++i)
    absl::StrAppend(&schema, ",{\"type\":\"string\",\"minLength\":", 20 + i % 100, "}");
  return schema + "]}";
}

TEST(TokenAutomaton, MakesAnExpensiveMaskInSlices) {
  const auto tokenizer = Tokenizer::Load("deploy/demo/chat").value();
  const auto table = Table(*tokenizer, 2);
  const auto at_once = Automaton(ManyWays(), table);
  const auto sliced = Automaton(ManyWays(), table);
  TokenAutomaton::Cursor whole(at_once.get());
  TokenAutomaton::Cursor cursor(sliced.get());
  const int32_t quote = tokenizer->Encode("\"", false, "").value().back();
  ASSERT_EQ(tokenizer->TokenBytes(quote), "\"");
  whole.Mask();
  whole.Accept(quote);
  cursor.Mask();
  cursor.Accept(quote);
  constexpr int64_t kSlice = 1 << 12;
  int slices = 1;
  for (int64_t steps = kSlice; !cursor.Prepare(&steps); steps = kSlice, ++slices) {
    ASSERT_LT(slices, 10000);
    ASSERT_GE(steps, -TokenAutomaton::kMaxTransitionSteps);
  }
  EXPECT_GT(slices, 10);
  const int64_t spent = sliced->counts().steps;
  EXPECT_EQ(cursor.Mask(), whole.Mask());
  EXPECT_EQ(sliced->counts().steps, spent);
}

TEST(TokenAutomaton, MakesTheMasksOfAllCursorsHoweverTheyTakeTurns) {
  const ByteTokenizer tokenizer;
  const auto automaton = Automaton(ManyWays(), Table(tokenizer, ByteTokenizer::kEnd));
  auto gone = std::make_unique<TokenAutomaton::Cursor>(automaton.get());
  TokenAutomaton::Cursor inside(automaton.get());
  TokenAutomaton::Cursor copied_from(automaton.get());
  inside.Accept('"');
  bool ready[3] = {};
  for (int turn = 0; turn < 1000000 && !(ready[0] && ready[1]); ++turn) {
    int64_t few = 64;
    if (gone != nullptr) gone->Prepare(&few);
    if (turn == 1) gone = nullptr;
    few = 64;
    ready[0] = inside.Prepare(&few);
    few = 64;
    ready[1] = copied_from.Prepare(&few);
  }
  ASSERT_TRUE(ready[0] && ready[1]);
  const TokenAutomaton::Cursor copy(copied_from);
  EXPECT_TRUE(Allows(inside.Mask(), 'x'));
  EXPECT_FALSE(Allows(copied_from.Mask(), 'x'));
  EXPECT_TRUE(Allows(copied_from.Mask(), 't'));
}

}  // namespace
}  // namespace aludel
