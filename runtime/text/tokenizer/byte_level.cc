#include "runtime/text/tokenizer/byte_level.h"

#include <array>

#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

constexpr size_t kCharacters = 0x100 + 68;

constexpr bool IsItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Tables {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kCharacters> byte{};  // -1: stands for no byte
};

constexpr Tables MakeTables() {
  Tables tables;
  for (int16_t& byte : tables.byte) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    tables.character[byte] = IsItself(byte) ? static_cast<char32_t>(byte) : next++;
    tables.byte[tables.character[byte]] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();
static_assert(kTables.character[' '] == 0x120 && kTables.byte[kCharacters - 1] == 0xad);

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kTables.character[byte]; }

bool ByteLevelBytes(absl::string_view spelling, std::string* bytes) {
  bytes->clear();
  for (size_t i = 0; i < spelling.size();) {
    const char32_t character = NextCodePoint(spelling, &i);
    if (character >= kCharacters || kTables.byte[character] < 0) return false;
    bytes->push_back(static_cast<char>(kTables.byte[character]));
  }
  return true;
}

}  // namespace aludel
