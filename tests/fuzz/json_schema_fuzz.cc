// A JSON schema, and bytes that choose among what its grammar allows: whatever compiles must give texts that
// are JSON, byte by byte.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"

namespace {

constexpr size_t kMaxText = 512;

}  // namespace

// The schema ends at the first zero byte; choices follow.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  static const auto* const kTable = new std::shared_ptr<const TokenTable>(std::make_shared<TokenTable>(
      ByteTokenizer(), std::vector<int>{ByteTokenizer::kEnd}, ByteTokenizer::kEnd + 1));
  const uint8_t* const end = std::find(bytes, bytes + size, 0);
  const std::string schema(bytes, end);
  absl::StatusOr<Grammar> grammar = CompileConstraint({"", schema, ""});
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
    if (allowed.empty()) std::abort();  // a text that cannot end
    // Where choices are over, the end as soon as it may come.
    const uint8_t pick = choice < bytes + size ? *choice++ : 255;
    const int32_t id = pick == 255 ? allowed.back() : allowed[pick % allowed.size()];
    if (id == ByteTokenizer::kEnd) {
      if (!nlohmann::json::accept(text)) std::abort();
      return 0;
    }
    text += static_cast<char>(id);
    cursor.Accept(id);
  }
  return 0;
}
