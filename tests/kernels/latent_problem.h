#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/latents.h"

namespace aludel {

// Random latents in steps of 1/2, and their bytes written bit by bit from the format's definition.
struct LatentProblem {
  LatentProblem(int64_t tokens, int columns, std::mt19937_64& random)
      : stride(columns + 3), columns(columns) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    z.assign(tokens * stride, kNan);
    codes.resize(tokens * columns);
    size_t bits_used = 0;
    const auto next_plane = [&](size_t token_bits) {
      const size_t offset = (bits_used + 7) / 8;
      bits_used = offset * 8 + tokens * token_bits;
      return static_cast<uint32_t>(offset);
    };
    for (int i = 0; i < columns; ++i) {
      LatentPlane plane;
      plane.bits = static_cast<uint8_t>(1 + random() % 16);
      const bool bytes_alone = random() % 2 == 0;
      plane.width = bytes_alone ? 8 : plane.bits;
      plane.offset = next_plane(plane.width);
      if (bytes_alone && plane.bits > 8) plane.high_offset = next_plane(8);
      planes.push_back(plane);
    }
    bytes.assign((bits_used + 7) / 8, 0);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (int i = 0; i < columns; ++i) {
      const LatentPlane& plane = planes[i];
      const int64_t limit = int64_t{1} << (plane.bits - 1);
      for (int64_t t = 0; t < tokens; ++t) {
        const uint64_t kind = random() % 20;
        float value = normal(random) * (kind < 4 ? 10000.0f : 1.0f);
        if (kind == 4) value = std::floor(value) + 0.25f;  // a tie
        if (kind == 5) value = random() % 2 == 0 ? kInfinity : -kInfinity;
        if (kind == 6) value = kNan;
        z[t * stride + i] = value;
        // Ties go to even, as nearbyint sends them.
        const double rounded = std::isnan(value) ? 0.0 : std::nearbyint(2.0 * static_cast<double>(value));
        const auto code = static_cast<int64_t>(
            std::clamp(rounded, static_cast<double>(-limit), static_cast<double>(limit - 1)));
        codes[t * columns + i] = static_cast<int32_t>(code);
        for (int b = 0; b < plane.stored_bits(); ++b) {
          const bool high = b >= plane.width;
          const int64_t bit = high ? plane.high_offset * int64_t{8} + t * 8 + b - plane.width
                                   : plane.offset * int64_t{8} + t * plane.width + b;
          bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] | (code >> b & 1) << bit % 8);
        }
      }
    }
  }

  int32_t code(int64_t token, int column) const { return codes[token * columns + column]; }

  int64_t stride;
  int columns;
  std::vector<float> z;        // [tokens, columns], rows `stride` apart
  std::vector<int32_t> codes;  // [tokens, columns]
  std::vector<LatentPlane> planes;
  std::vector<uint8_t> bytes;
};

}  // namespace aludel
