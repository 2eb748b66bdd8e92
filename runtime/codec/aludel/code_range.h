#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// Whether a grid holds a prompt's latents. One beyond the range of its codes becomes the code at its end, and what it was is lost.
// Calibration makes ranges wide enough for its own text, so that many such codes tell of a prompt that is unlike it. Stateless.

// Codes are counted over so many neighboring tokens at most, so that one token whose latents are all beyond their ranges shows,
// however long its frame is.
inline constexpr int64_t kRangeTokens = 64;

// Of a part of a frame.
struct EndCodes {
  int64_t at_ends = 0;  // codes at either end of their ranges
  int64_t codes = 0;
};

// Of tokens [0, 64), [64, 128), ... of a frame the part with the most codes at ends. `planes` are laid out by
// PlanesOf(bits, packing, tokens) and are whole, not those of a cut payload: the ends of fewer bits are ordinary codes.
EndCodes MostEndCodes(absl::Span<const uint8_t> planes, const std::vector<int>& bits, LatentPacking packing,
                      int64_t tokens);

// A part's codes at ends over those of kRangeTokens tokens, which a short frame's last part does not have: few tokens weigh little.
double EndShare(const EndCodes& part, int64_t rank);

// How many codes at ends a part may have where calibration saw at most `expected_share`: four times that, at least one in a hundred
// codes of kRangeTokens tokens, and at least 16. A token of which three quarters are at ends is more, where ranks are 22 and above.
int64_t MostEndCodesAllowed(double expected_share, int64_t rank);

}  // namespace aludel
