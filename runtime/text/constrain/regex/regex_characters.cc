#include "runtime/text/constrain/regex/regex_characters.h"

#include <unicode/uset.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Behind "\u". Two halves of a surrogate pair are one character, as JavaScript writes it.
absl::StatusOr<std::optional<uint32_t>> ReadUnicode(TextCursor* cursor, size_t begin) {
  std::optional<uint32_t> code;
  if (cursor->Take("{")) {
    TextCursor ahead = *cursor;
    const size_t digits = ahead.TakeWhile(absl::ascii_isxdigit).size();
    if (digits > 0 && digits <= 6) code = cursor->TakeHex(digits);
    if (!cursor->Take("}")) code.reset();
  } else {
    code = cursor->TakeHex(4);
    if (code && *code >= 0xd800 && *code < 0xdc00 && cursor->Take("\\u")) {
      const auto low = cursor->TakeHex(4);
      if (low && *low >= 0xdc00 && *low < 0xe000) {
        code = 0x10000 + ((*code - 0xd800) << 10) + (*low - 0xdc00);
      }
    }
  }
  if (!code || *code > kMaxCodePoint || (*code >= 0xd800 && *code < 0xe000)) {
    return TextCursor::Fault(begin, "an escape that is no character");
  }
  return code;
}

// \p{Lu}, \p{Script=Greek}
absl::StatusOr<CodePointSet> ReadProperty(TextCursor* cursor, size_t begin, StepBudget* budget) {
  const auto nameless = [begin] { return TextCursor::Fault(begin, "a property without a name"); };
  if (!cursor->Take("{")) return nameless();
  const absl::string_view name = cursor->TakeWhile([](char c) { return c != '}'; });
  const auto belongs = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '='; };
  if (!cursor->Take("}") || name.empty() || name.size() > 64 ||
      !std::all_of(name.begin(), name.end(), belongs)) {
    return nameless();
  }
  const std::string query = absl::StrCat("[:", std::string(name), ":]");
  std::u16string wide(query.begin(), query.end());
  UErrorCode status = U_ZERO_ERROR;
  USet* const found = uset_openPattern(wide.data(), static_cast<int32_t>(wide.size()), &status);
  if (U_FAILURE(status)) {
    uset_close(found);
    return TextCursor::Fault(begin, "a property that Unicode does not know");
  }
  CodePointSet set;
  for (int32_t i = 0; i < uset_getItemCount(found); ++i) {
    UChar32 first = 0, last = 0;
    UErrorCode ignored = U_ZERO_ERROR;
    if (uset_getItem(found, i, &first, &last, nullptr, 0, &ignored) == 0) set.Add(first, last);
  }
  uset_close(found);
  ALUDEL_RETURN_IF_ERROR(budget->Spend(10000));  // ICU looks at every character
  return set;
}

// One character, or nothing where several were added to the set.
absl::StatusOr<std::optional<uint32_t>> ReadClassItem(TextCursor* cursor, StepBudget* budget,
                                                      CodePointSet* set) {
  ALUDEL_RETURN_IF_ERROR(budget->Spend(4 + static_cast<int64_t>(set->ranges().size() / 8)));
  if (!cursor->Next("\\")) return cursor->TakeCodePoint();
  CodePointSet more;
  ALUDEL_ASSIGN_OR_RETURN(const auto one, ReadEscape(cursor, /*in_class=*/true, budget, &more));
  if (!one) {
    ALUDEL_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(more.ranges().size())));
    set->Add(more);
  }
  return one;
}

// The set that a letter behind a backslash names; nothing: it names none.
std::optional<CodePointSet> NamedSet(uint32_t letter) {
  switch (letter) {
    case 'd':
      return Digits();
    case 'D':
      return Digits().Negated();
    case 'w':
      return WordCharacters();
    case 'W':
      return WordCharacters().Negated();
    case 's':
      return WhiteSpace();
    case 'S':
      return WhiteSpace().Negated();
    default:
      return std::nullopt;
  }
}

std::optional<uint32_t> NamedCharacter(uint32_t letter) {
  switch (letter) {
    case 't':
      return '\t';
    case 'n':
      return '\n';
    case 'v':
      return '\v';
    case 'f':
      return '\f';
    case 'r':
      return '\r';
    default:
      return std::nullopt;
  }
}

}  // namespace

absl::StatusOr<std::optional<uint32_t>> ReadEscape(TextCursor* cursor, bool in_class, StepBudget* budget,
                                                   CodePointSet* set) {
  const size_t begin = cursor->at();
  cursor->Skip(1);
  if (cursor->Done()) return TextCursor::Fault(begin, "a '\\' with nothing behind it");
  const uint32_t c = cursor->TakeCodePoint();
  if (auto named = NamedSet(c)) {
    *set = *std::move(named);
    return std::nullopt;
  }
  if (const auto named = NamedCharacter(c)) return named;
  if (c == 'p' || c == 'P') {
    ALUDEL_ASSIGN_OR_RETURN(*set, ReadProperty(cursor, begin, budget));
    if (c == 'P') *set = set->Negated();
    return std::nullopt;
  }
  if (c == 'u') return ReadUnicode(cursor, begin);
  if (c == 'b' && in_class) return '\b';
  if (c == 'b' || c == 'B') return TextCursor::Fault(begin, "a word boundary, which is not supported,");
  if (c == 'x') {
    if (const auto code = cursor->TakeHex(2)) return code;
    return TextCursor::Fault(begin, "an escape that is no character");
  }
  if (c == 'c' && cursor->NextIs(absl::ascii_isalpha)) return cursor->TakeCodePoint() & 0x1f;
  if (c == '0' && !cursor->NextIs(absl::ascii_isdigit)) return '\0';
  if ((c >= '0' && c <= '9') || c == 'k') {
    return TextCursor::Fault(begin, "a backreference, which is not supported,");
  }
  if (c < 0x80 && absl::ascii_isalpha(static_cast<char>(c))) {
    return TextCursor::Fault(
        begin, absl::StrCat("the escape \\", std::string(1, static_cast<char>(c)), ", which is unknown,"));
  }
  return c;
}

absl::StatusOr<CodePointSet> ReadClass(TextCursor* cursor, size_t begin, StepBudget* budget) {
  const auto unclosed = [begin] { return TextCursor::Fault(begin, "a '[' that is not closed"); };
  const bool negated = cursor->Take("^");
  CodePointSet set;
  while (!cursor->Take("]")) {
    if (cursor->Done()) return unclosed();
    const size_t item = cursor->at();
    ALUDEL_ASSIGN_OR_RETURN(const auto first, ReadClassItem(cursor, budget, &set));
    if (!cursor->Next("-") || cursor->Next("-]")) {
      if (first) set.Add(*first, *first);
      continue;
    }
    cursor->Skip(1);
    if (cursor->Done()) return unclosed();
    ALUDEL_ASSIGN_OR_RETURN(const auto last, ReadClassItem(cursor, budget, &set));
    if (first && last && *first > *last) return TextCursor::Fault(item, "a range that is out of order");
    if (first && last) {
      set.Add(*first, *last);
      continue;
    }
    // Beside a class like \w the hyphen stands for itself.
    set.Add('-', '-');
    if (first) set.Add(*first, *first);
    if (last) set.Add(*last, *last);
  }
  return negated ? set.Negated() : set;
}

}  // namespace aludel
