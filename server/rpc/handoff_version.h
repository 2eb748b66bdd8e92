#pragma once

#include <cstdint>

namespace aludel {

// Version of proto/aludel/v1/handoff.proto's meaning; peers with another one are refused when they connect.
inline constexpr uint32_t kHandoffVersion = 3;

}  // namespace aludel
