#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/codec/video/hevc.h"

namespace aludel {

// NAL unit header (ITU-T H.265, 7.3.1.2) of the one slice of a picture of ours, in layer 0: IDR_N_LP of the first, TRAIL_R
// of the others.
inline constexpr size_t kSliceHeaderBytes = 2;
inline constexpr uint8_t kFirstSliceHeader[kSliceHeaderBytes] = {20 << 1, 1};
inline constexpr uint8_t kNextSliceHeader[kSliceHeaderBytes] = {1 << 1, 1};

// The side of the largest coding block: of small pictures smaller, as no picture may be smaller than it.
int LargestBlock(const HevcPictures& pictures);

// Video, sequence and picture parameter set, each behind a start code, of such pictures (their samples aside): profile Main,
// or RExt with three planes, 8 bits, blocks that may bypass transform and quantization. They never travel: a decoder
// writes them from what it knows, so that no peer chooses a picture's size (FORMAT.md, packing video).
std::vector<uint8_t> HevcParameterSets(const HevcPictures& pictures);

}  // namespace aludel
