#include "runtime/text/tokenizer/utf8.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <cstring>

namespace aludel {

size_t FirstInvalidUtf8(absl::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    // Eight ASCII bytes at a time: most text is.
    uint64_t word;
    if (i + sizeof(word) <= size) {
      std::memcpy(&word, bytes + i, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const size_t start = i;
    UChar32 code_point;
    U8_NEXT(bytes, i, size, code_point);
    if (code_point < 0) return start;
  }
  return size;
}

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  const size_t valid = FirstInvalidUtf8(bytes);
  std::string text(bytes.substr(0, valid));
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t i = valid; i < bytes.size();) {
    const size_t start = i;
    UChar32 code_point;
    U8_NEXT(data, i, bytes.size(), code_point);
    if (code_point < 0) {
      text += "\xef\xbf\xbd";
    } else {
      text.append(bytes.data() + start, i - start);
    }
  }
  return text;
}

char32_t NextCodePoint(absl::string_view text, size_t* position) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  UChar32 code_point;
  U8_NEXT_OR_FFFD(bytes, *position, text.size(), code_point);
  return static_cast<char32_t>(code_point);
}

char32_t PreviousCodePoint(absl::string_view text, size_t* position) {
  do {
    --*position;
  } while (*position > 0 && (static_cast<uint8_t>(text[*position]) & 0xc0) == 0x80);
  size_t end = *position;
  return NextCodePoint(text, &end);
}

void AppendUtf8(char32_t code_point, std::string* text) {
  uint8_t buffer[U8_MAX_LENGTH];
  size_t length = 0;
  UBool error = false;
  U8_APPEND(buffer, length, sizeof(buffer), static_cast<UChar32>(code_point), error);
  if (error) {
    *text += "\xef\xbf\xbd";
  } else {
    text->append(reinterpret_cast<const char*>(buffer), length);
  }
}

bool IsWhiteSpace(char32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)); }

bool IsNumeric(char32_t code_point) {
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & (U_GC_ND_MASK | U_GC_NL_MASK | U_GC_NO_MASK)) !=
         0;
}

bool IsWordCharacter(char32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return u_isUAlphabetic(c) || (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

}  // namespace aludel
