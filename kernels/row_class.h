#pragma once

#include <bit>
#include <cstdint>

namespace aludel {

// Steps of about as many rows as each other: the least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not below `rows`, which is at
// least 1. What a device chooses by timing it chooses once for a class and not for every number of rows, of which each
// prompt may bring another.
constexpr int64_t RowClass(int64_t rows) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t below = power / 4 * 3;
  return rows <= below ? below : power;
}

}  // namespace aludel
