#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"

namespace aludel {

// The language of a constraint, byte by byte.
class Language {
 public:
  explicit Language(absl::string_view schema, absl::string_view prefix = "", absl::string_view suffix = "")
      : Language(TextConstraint{std::string(prefix), std::string(schema), std::string(suffix)}) {}
  explicit Language(const TextConstraint& constraint) {
    auto grammar = CompileConstraint(constraint);
    EXPECT_TRUE(grammar.ok()) << constraint.json_schema << constraint.regex << constraint.grammar << ": "
                              << grammar.status();
    if (grammar.ok()) Run(*std::move(grammar));
  }
  explicit Language(Grammar grammar) { Run(std::move(grammar)); }
  bool Has(absl::string_view text) {
    if (automaton_ == nullptr) return false;
    TokenAutomaton::Cursor cursor(automaton_.get());
    for (const char byte : text) {
      const auto id = static_cast<uint8_t>(byte);
      if (!Allows(cursor.Mask(), id)) return false;
      cursor.Accept(id);
    }
    return Allows(cursor.Mask(), ByteTokenizer::kEnd);
  }

 private:
  void Run(Grammar grammar) {
    const ByteTokenizer tokenizer;
    automaton_ = std::make_unique<TokenAutomaton>(
        std::move(grammar), std::make_shared<TokenTable>(tokenizer, std::vector<int>{ByteTokenizer::kEnd},
                                                         tokenizer.vocab_size()));
  }
  // A mask is empty where nothing may come.
  static bool Allows(absl::Span<const uint64_t> mask, int id) {
    return !mask.empty() && (mask[id / 64] >> (id % 64) & 1) != 0;
  }

  std::unique_ptr<TokenAutomaton> automaton_;
};

}  // namespace aludel
