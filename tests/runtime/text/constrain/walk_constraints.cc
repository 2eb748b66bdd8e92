// For judge_constraints.py: a constraint a line, as JSON, {"schema" or "regex" or "grammar", "walks": number, "seed",
// "texts": [...]}; answered by a line {"error"} or {"walks": texts drawn at random, "has": which of the texts it allows}.
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int kEnd = ByteTokenizer::kEnd;
constexpr size_t kMaxWalk = 600;

bool Allowed(absl::Span<const uint64_t> mask, int id) {
  return !mask.empty() && (mask[id / 64] >> (id % 64) & 1) != 0;
}

bool Has(TokenAutomaton* automaton, const std::string& text) {
  TokenAutomaton::Cursor cursor(automaton);
  for (const char byte : text) {
    if (!Allowed(cursor.Mask(), static_cast<uint8_t>(byte))) return false;
    cursor.Accept(static_cast<uint8_t>(byte));
  }
  return Allowed(cursor.Mask(), kEnd);
}

// Ends where it may, one time in three, and prefers what is printable. A text that does not end is none.
std::optional<std::string> Walk(TokenAutomaton* automaton, std::mt19937* random) {
  TokenAutomaton::Cursor cursor(automaton);
  std::string text;
  while (text.size() < kMaxWalk) {
    const absl::Span<const uint64_t> mask = cursor.Mask();
    std::vector<int> ways, printable;
    for (int id = 0; id < kEnd; ++id) {
      if (!Allowed(mask, id)) continue;
      ways.push_back(id);
      if (id >= ' ' && id < 127) printable.push_back(id);
    }
    if (Allowed(mask, kEnd) && (ways.empty() || (*random)() % 3 == 0)) return text;
    if (ways.empty()) return text + "<no way on>";
    // What closes a string or a list is drawn more often than chance would.
    const bool closes = Allowed(mask, '"') && (*random)() % 4 == 0;
    const std::vector<int>& from = !printable.empty() && (*random)() % 8 != 0 ? printable : ways;
    const int id = closes ? '"' : from[(*random)() % from.size()];
    text += static_cast<char>(id);
    cursor.Accept(id);
  }
  return std::nullopt;
}

ordered_json Answer(const ordered_json& line, const std::shared_ptr<const TokenTable>& table) {
  TextConstraint constraint;
  if (line.contains("schema")) constraint.json_schema = line["schema"].dump();
  constraint.regex = line.value("regex", "");
  constraint.grammar = line.value("grammar", "");
  absl::StatusOr<Grammar> grammar = CompileConstraint(constraint);
  if (!grammar.ok()) return {{"error", std::string(grammar.status().message())}};
  TokenAutomaton automaton(*std::move(grammar), table);
  std::mt19937 random(line.value("seed", 1));
  ordered_json answer = {{"walks", ordered_json::array()}, {"has", ordered_json::array()}};
  for (int i = line.value("walks", 0); i > 0; --i) {
    if (auto text = Walk(&automaton, &random)) answer["walks"].push_back(*std::move(text));
  }
  for (const ordered_json& text : line.value("texts", ordered_json::array())) {
    answer["has"].push_back(Has(&automaton, text.get<std::string>()));
  }
  return answer;
}

}  // namespace
}  // namespace aludel

int main() {
  using namespace aludel;
  const auto table = std::make_shared<const TokenTable>(ByteTokenizer(), std::vector<int>{kEnd}, kEnd + 1);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << Answer(ordered_json::parse(line), table)
                     .dump(-1, ' ', false, ordered_json::error_handler_t::replace)
              << std::endl;
  }
}
