#include "runtime/codec/aludel/code_range.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"

namespace aludel {
namespace {

constexpr double kRoom = 4;
constexpr double kLeastShare = 0.01;
constexpr int64_t kLeastCodes = 16;

// Of one latent, tokens [first, first + count), at most kRangeTokens. Nothing keeps hostile planes from codes beyond the range:
// they count as well.
int64_t CountEnds(const uint8_t* planes, const LatentPlane& plane, int64_t first, int64_t count) {
  const int32_t limit = 1 << (plane.bits - 1);
  int64_t ends = 0;
  if (plane.width == 8 && plane.high_offset == 0) {  // most latents, by a loop that becomes vectors
    const auto* const codes = reinterpret_cast<const int8_t*>(planes + plane.offset + first);
    for (int64_t t = 0; t < count; ++t) {
      ends += static_cast<int64_t>(codes[t] <= -limit) | static_cast<int64_t>(codes[t] >= limit - 1);
    }
    return ends;
  }
  std::array<float, kRangeTokens> codes;
  ReadLatent(planes, plane, first, count, /*step=*/1.0f, codes.data(), /*stride=*/1);
  const auto low = static_cast<float>(-limit), high = static_cast<float>(limit - 1);
  return std::count_if(codes.begin(), codes.begin() + count,
                       [&](float code) { return code <= low || code >= high; });
}

}  // namespace

EndCodes MostEndCodes(absl::Span<const uint8_t> planes, const std::vector<int>& bits, LatentPacking packing,
                      int64_t tokens) {
  const std::vector<LatentPlane> layout = PlanesOf(bits, packing, tokens);
  EndCodes most;
  for (int64_t first = 0; first < tokens; first += kRangeTokens) {
    const int64_t count = std::min(kRangeTokens, tokens - first);
    EndCodes part{0, count * static_cast<int64_t>(bits.size())};
    for (const LatentPlane& plane : layout) part.at_ends += CountEnds(planes.data(), plane, first, count);
    if (first == 0 || part.at_ends > most.at_ends) most = part;
  }
  return most;
}

double EndShare(const EndCodes& part, int64_t rank) {
  return static_cast<double>(part.at_ends) / static_cast<double>(kRangeTokens * rank);
}

int64_t MostEndCodesAllowed(double expected_share, int64_t rank) {
  const double share = std::max(kLeastShare, kRoom * expected_share);
  const auto codes = static_cast<int64_t>(std::ceil(share * static_cast<double>(kRangeTokens * rank)));
  return std::max(kLeastCodes, codes);
}

}  // namespace aludel
