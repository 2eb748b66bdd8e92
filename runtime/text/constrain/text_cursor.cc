#include "runtime/text/constrain/text_cursor.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {

absl::Status TextCursor::Fault(size_t byte, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("has ", what, " at byte ", byte));
}

absl::Status TextCursor::CheckUtf8() const {
  const size_t fault = FirstInvalidUtf8(text_);
  return fault == text_.size() ? absl::OkStatus() : Fault(fault, "no UTF-8");
}

uint32_t TextCursor::TakeCodePoint() { return NextCodePoint(text_, &at_); }

std::optional<uint32_t> TextCursor::TakeHex(size_t digits) {
  const absl::string_view text = text_.substr(at_, digits);
  if (text.size() < digits || !std::all_of(text.begin(), text.end(), absl::ascii_isxdigit))
    return std::nullopt;
  at_ += digits;
  return static_cast<uint32_t>(std::stoul(std::string(text), nullptr, 16));
}

std::optional<int32_t> TextCursor::TakeNumber(int32_t most) {
  const absl::string_view digits = TakeWhile(absl::ascii_isdigit);
  if (digits.empty()) return std::nullopt;
  int64_t value = 0;
  for (const char digit : digits) value = std::min<int64_t>(value * 10 + (digit - '0'), most);
  return static_cast<int32_t>(value);
}

}  // namespace aludel
