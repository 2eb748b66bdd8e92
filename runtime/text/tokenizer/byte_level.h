#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// GPT-2's spelling of bytes as printable characters, which byte-level vocabularies are written in: printable
// Latin-1 bytes are themselves, the other 68 bytes are U+0100, U+0101, ... in order ("Ġ" is a space).

// The character that stands for `byte`.
char32_t ByteLevelCharacter(uint8_t byte);

// The bytes that `spelling` stands for. False, and `bytes` undefined, where a character stands for no byte.
bool ByteLevelBytes(absl::string_view spelling, std::string* bytes);

}  // namespace aludel
