#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// Whether a prompt's codes are like those of calibration's text. A latent beyond the range of its codes becomes the code at its
// end, and what it was is lost; and a prompt that is unlike all that encoder and decoder were fitted to has larger codes than that,
// within their ranges, too: the decoder does not know what they mean. Stateless.

// Codes are counted over so many neighboring tokens at most, so that one token whose latents are all beyond their ranges shows,
// however long its frame is.
inline constexpr int64_t kRangeTokens = 64;

// Of a part of a frame: tokens [0, 64), or [64, 128), ... Digits are the binary ones of codes' magnitudes, all together: about what
// the codes tell, in bits, whatever the packing.
struct CodeCount {
  int64_t at_ends = 0;  // codes at either end of their ranges
  int64_t codes = 0;
  int64_t digits = 0;
};

// [parts]. `planes` are laid out by PlanesOf(bits, packing, tokens) and are whole, not those of a cut payload: the ends of fewer bits
// are ordinary codes.
std::vector<CodeCount> CountCodes(absl::Span<const uint8_t> planes, const std::vector<int>& bits,
                                  LatentPacking packing, int64_t tokens);

// A part's codes at ends over the codes of kRangeTokens tokens, which a frame's last part may not have: few tokens weigh little.
double EndShare(const CodeCount& part, int64_t rank);

// Parts of kRangeTokens tokens that calibration must have seen to expect anything of the next one's digits. Of 156 such parts of the
// demo's prompts over aludel-p0, drawn at random 2,000 times, the most of 4 was as little as 1 / 1.15 of the most of the others, of 8
// 1 / 1.10, and of 32 1 / 1.06.
inline constexpr int64_t kLeastDigitParts = 32;

// A part's digits over its codes; 0 for less than kRangeTokens tokens, which tell little of a text.
double Digits(const CodeCount& part, int64_t rank);

// How many codes at ends a part may have where calibration saw at most `expected_share`: four times that, at least one in a hundred
// codes of kRangeTokens tokens, and at least 16. A token of which three quarters are at ends is more, where ranks are 22 and above.
int64_t MostEndCodesAllowed(double expected_share, int64_t rank);

// How many Digits a part may have where calibration saw at most `expected`; any number where that is 0.
double MostDigitsAllowed(double expected);

// OutOfRange, with the figures, where a part of a frame of shape.groups[group] has more of either than shape.range allows.
absl::Status CheckCodeRange(const AludelShape& shape, size_t group, absl::Span<const CodeCount> parts);

// What covers both.
CodeRange Union(const CodeRange& a, const CodeRange& b);

}  // namespace aludel
