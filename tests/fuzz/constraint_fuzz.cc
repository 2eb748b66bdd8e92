// A regex or a GBNF grammar, and bytes that choose among what it allows: no text may come to a place from which none goes
// on, and of a regex the automaton must agree with itself on what it has written.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/constrain/regex/char_dfa.h"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"

namespace {

constexpr size_t kMaxText = 256;

}  // namespace

// The first byte says which of the two (1), and whether thoughts may stand in front of it (4), or a call in its place (8); the
// text ends at the first zero byte; choices follow.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  static const auto* const kTable = new std::shared_ptr<const TokenTable>(std::make_shared<TokenTable>(
      ByteTokenizer(), std::vector<int>{ByteTokenizer::kEnd}, ByteTokenizer::kEnd + 1));
  if (size == 0) return 0;
  const bool regex = bytes[0] % 2 == 0;
  const uint8_t* const end = std::find(bytes + 1, bytes + size, 0);
  const std::string constraint(bytes + 1, end);
  TextConstraint whole = regex ? TextConstraint{.regex = constraint} : TextConstraint{.grammar = constraint};
  if ((bytes[0] & 4) != 0) {
    whole.think_begin = (bytes[0] & 16) != 0 ? "" : "<t>";
    whole.think_end = "</t>";
  }
  if ((bytes[0] & 8) != 0) whole.call_schema = R"({"enum": ["f", {"a": 1}]})";
  const bool alone = whole.think_end.empty() && whole.call_schema.empty();
  absl::StatusOr<Grammar> grammar = CompileConstraint(whole);
  if (!grammar.ok()) return 0;
  TokenAutomaton automaton(*std::move(grammar), *kTable);
  TokenAutomaton::Cursor cursor(&automaton);
  std::string text;
  for (const uint8_t* choice = end; text.size() < kMaxText;) {
    const absl::Span<const uint64_t> mask = cursor.Mask();
    if (mask.empty()) return 0;  // too much is open at once: refused
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id <= ByteTokenizer::kEnd; ++id) {
      if ((mask[id / 64] >> (id % 64) & 1) != 0) allowed.push_back(id);
    }
    // A grammar may hold a rule that never ends beside others that do; a regex has no such way.
    if (allowed.empty() && regex) std::abort();
    if (allowed.empty()) return 0;
    const uint8_t pick = choice < bytes + size ? *choice++ : 255;
    const int32_t id = pick == 255 ? allowed.back() : allowed[pick % allowed.size()];
    if (id == ByteTokenizer::kEnd) {
      if (!regex || !alone) return 0;
      StepBudget budget(kMaxCompileSteps);
      const auto dfa = CharDfa::Make(*ParseRegex(constraint, &budget), CharDfa::Match::kWhole, &budget);
      if (!dfa->Has(text)) std::abort();
      return 0;
    }
    text += static_cast<char>(id);
    cursor.Accept(id);
  }
  return 0;
}
