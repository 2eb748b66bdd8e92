#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace aludel {

// First bytes of an artefact's hash (hex) as frames carry them; zeros for "".
std::array<uint8_t, 8> ArtifactPrefix(const std::string& hash_hex);

}  // namespace aludel
