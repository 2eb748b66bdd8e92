#include "runtime/text/constrain/gbnf/gbnf_characters.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

absl::StatusOr<uint32_t> ReadHex(TextCursor* cursor, size_t begin, size_t digits) {
  const auto code = cursor->TakeHex(digits);
  if (code && *code <= kMaxCodePoint && (*code < 0xd800 || *code >= 0xe000)) return *code;
  return TextCursor::Fault(begin, "an escape that is no character");
}

// One character, escaped or not.
absl::StatusOr<uint32_t> ReadCharacter(TextCursor* cursor, StepBudget* budget) {
  ALUDEL_RETURN_IF_ERROR(budget->Spend(1));
  const size_t begin = cursor->at();
  const uint32_t c = cursor->TakeCodePoint();
  if (c != '\\') return c;
  if (cursor->Done()) return TextCursor::Fault(begin, "a '\\' with nothing behind it");
  const uint32_t escaped = cursor->TakeCodePoint();
  switch (escaped) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'x':
      return ReadHex(cursor, begin, 2);
    case 'u':
      return ReadHex(cursor, begin, 4);
    case 'U':
      return ReadHex(cursor, begin, 8);
    default:
      break;
  }
  if (escaped < 0x80 && absl::ascii_ispunct(static_cast<char>(escaped))) return escaped;
  return TextCursor::Fault(begin, "an escape that is unknown");
}

}  // namespace

absl::StatusOr<std::string> ReadGbnfLiteral(TextCursor* cursor, size_t begin, StepBudget* budget) {
  std::string text;
  while (!cursor->Take("\"")) {
    if (cursor->Done() || cursor->Next("\n")) {
      return TextCursor::Fault(begin, "a literal that does not end");
    }
    ALUDEL_ASSIGN_OR_RETURN(const uint32_t c, ReadCharacter(cursor, budget));
    AppendUtf8(c, &text);
  }
  return text;
}

absl::StatusOr<CodePointSet> ReadGbnfClass(TextCursor* cursor, size_t begin, StepBudget* budget) {
  const bool negated = cursor->Take("^");
  CodePointSet set;
  while (!cursor->Take("]")) {
    if (cursor->Done() || cursor->Next("\n")) return TextCursor::Fault(begin, "a '[' that is not closed");
    const size_t item = cursor->at();
    ALUDEL_RETURN_IF_ERROR(budget->Spend(1 + static_cast<int64_t>(set.ranges().size() / 8)));
    ALUDEL_ASSIGN_OR_RETURN(const uint32_t first, ReadCharacter(cursor, budget));
    uint32_t last = first;
    // At the end of the class a hyphen stands for itself.
    if (cursor->Next("-") && !cursor->Next("-]") && cursor->rest().size() > 1) {
      cursor->Skip(1);
      ALUDEL_ASSIGN_OR_RETURN(last, ReadCharacter(cursor, budget));
    }
    if (first > last) return TextCursor::Fault(item, "a range that is out of order");
    set.Add(first, last);
  }
  if (negated) set = set.Negated();
  if (set.empty()) return TextCursor::Fault(begin, "a class of no character");
  return set;
}

}  // namespace aludel
