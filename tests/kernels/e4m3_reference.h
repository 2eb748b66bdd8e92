#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace aludel {

// E4M3 from its definition, in double, sharing nothing with kernels/e4m3.h.
inline double E4m3Value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8.0 + mantissa, exponent - 10);
  return code >= 128 ? -size : size;
}

// Of the finite numbers the nearest to x, of two the one with an even code.
inline uint8_t NearestE4m3(double x) {
  const double size = std::fabs(x);
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double distance = std::fabs(E4m3Value(code) - size), least = std::fabs(E4m3Value(best) - size);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(std::signbit(x) ? best | 128 : best);
}

}  // namespace aludel
