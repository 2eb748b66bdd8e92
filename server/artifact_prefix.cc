#include "server/artifact_prefix.h"

#include <algorithm>

#include "absl/strings/escaping.h"

namespace aludel {

std::array<uint8_t, 8> ArtifactPrefix(const std::string& hash_hex) {
  std::array<uint8_t, 8> prefix = {};
  if (hash_hex.size() < 2 * prefix.size()) return prefix;
  const std::string bytes = absl::HexStringToBytes(hash_hex.substr(0, 2 * prefix.size()));
  std::copy(bytes.begin(), bytes.end(), prefix.begin());
  return prefix;
}

}  // namespace aludel
