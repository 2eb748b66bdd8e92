#pragma once

#include "kernels/e4m3.h"
#include "kernels/host_device.h"

namespace aludel {

// A row x of numbers becomes codes ToE4m3(E4m3Input(x, scale)) that stand for `scale` times their values, its largest number
// for the largest. Where that has no inverse (zero, below about 2^-119, infinite, NaN) all codes are zeros; the scale is
// finite where the row is, and products of a row that is not are NaN.
struct E4m3Scale {
  float scale;
  float inverse;
};
ALUDEL_HOST_DEVICE inline E4m3Scale E4m3ScaleOf(float largest) {
  const float inverse = kE4m3Max / largest;
  const bool usable = largest != 0.0f && inverse - inverse == 0.0f && largest - largest == 0.0f;
  return {largest / kE4m3Max, usable ? inverse : 0.0f};
}
ALUDEL_HOST_DEVICE inline float E4m3Input(float x, const E4m3Scale& scale) {
  return scale.inverse == 0.0f ? 0.0f : x * scale.inverse;
}

}  // namespace aludel
