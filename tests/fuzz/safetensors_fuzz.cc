// The header of a safetensors file. Every byte that an accepted tensor claims is read.
#include <cstdint>
#include <vector>

#include "runtime/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  if (size < 1) return 0;
  // The first byte says how much tensor data follows the header.
  const std::vector<uint8_t> data(bytes[0]);
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  const absl::string_view header(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  if (!ParseSafetensorsHeader(header, data.data(), data.size(), "fuzz", &entries, &metadata).ok()) return 0;
  unsigned sum = 0;
  for (const auto& [name, entry] : entries) {
    for (const uint8_t byte : entry.data) sum += byte;
    sum += static_cast<unsigned>(entry.elements());
  }
  return sum == 0xffffffff ? 1 : 0;
}
