#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// Offset of the first byte that is not part of well-formed UTF-8; text.size() where there is none.
size_t FirstInvalidUtf8(absl::string_view text);

// `bytes` with every ill-formed sequence (its longest part that could start a character) as one U+FFFD.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

// The code point at `*position` of well-formed UTF-8, which moves past it.
char32_t NextCodePoint(absl::string_view text, size_t* position);

// The code point that ends before `*position` (> 0), which moves to its start.
char32_t PreviousCodePoint(absl::string_view text, size_t* position);

void AppendUtf8(char32_t code_point, std::string* text);

// Unicode properties that tokenizer files refer to. `\w` is Alphabetic, M, Nd, Pc and Join_Control.
bool IsWhiteSpace(char32_t code_point);
bool IsNumeric(char32_t code_point);  // categories Nd, Nl, No
bool IsWordCharacter(char32_t code_point);

}  // namespace aludel
