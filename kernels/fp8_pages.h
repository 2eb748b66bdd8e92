#pragma once

#include <cstdint>

#include "kernels/e4m3.h"
#include "kernels/host_device.h"
#include "kernels/tensor.h"

// What the pages of an FP8 cache (PagedKv with DType::kFp8) hold: of values the nearest E4M3 numbers, of keys those of a quarter of
// them. Beyond 448 values saturate, and keys beyond 1,792.
//
// No scale is fitted. E4M3 is a floating-point type: its relative error is at most 2^-4 from 2^-6 up to 448, so a scale only moves
// these 15 octaves. Keys want more of them above: where their projections have biases, some dimensions reach hundreds, and one that
// saturates is wrong by more than rounding. What a small key loses counts little, as errors of a score add up absolutely: below
// 2^-4 a key is off by 2^-8 at most. Values want what E4M3 has as it is. A scale of each token and head would cost a pass
// over the head before its first number is written, which kernels that rotate pairs do not hold; one that a prompt at start-up
// gives is right for prompts like it.
namespace aludel {

struct Fp8 {
  uint8_t bits = 0;
};
static_assert(sizeof(Fp8) == 1);

ALUDEL_HOST_DEVICE inline Fp8 ToFp8(float value) { return {ToE4m3(value)}; }
ALUDEL_HOST_DEVICE inline float FromFp8(Fp8 value) { return FromE4m3(value.bits); }

// Keys are stored times this, a power of two; attention makes up for it in its scale.
ALUDEL_HOST_DEVICE constexpr float KeyScale(DType pages) { return pages == DType::kFp8 ? 0.25f : 1.0f; }

}  // namespace aludel
