#include "runtime/codec/aludel/code_range.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/numeric/bits.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"

namespace aludel {
namespace {

constexpr double kRoom = 4;
constexpr double kLeastShare = 0.01;
constexpr int64_t kLeastCodes = 16;
constexpr double kDigitsRoom = 1.1;

// Adds one latent's codes of tokens [first, first + count), at most kRangeTokens. Nothing keeps hostile planes from codes beyond the
// range: they count as well.
void Count(const uint8_t* planes, const LatentPlane& plane, int64_t first, int64_t count, CodeCount* part) {
  const int32_t limit = 1 << (plane.bits - 1);
  if (plane.width == 8 && plane.high_offset == 0) {  // most latents, by loops that become vectors
    const auto* const codes = reinterpret_cast<const int8_t*>(planes + plane.offset + first);
    int32_t ends = 0, digits = 0;
    for (int64_t t = 0; t < count; ++t) {
      ends += static_cast<int32_t>(codes[t] <= -limit) + static_cast<int32_t>(codes[t] >= limit - 1);
      const int32_t magnitude = std::abs(codes[t]);
      for (int digit = 0; digit < 8; ++digit) digits += static_cast<int32_t>(magnitude >> digit != 0);
    }
    part->at_ends += ends;
    part->digits += digits;
    return;
  }
  std::array<float, kRangeTokens> codes;
  ReadLatent(planes, plane, first, count, /*step=*/1.0f, codes.data(), /*stride=*/1);
  for (int64_t t = 0; t < count; ++t) {
    const auto code = static_cast<int32_t>(codes[t]);
    part->at_ends += static_cast<int64_t>(code <= -limit || code >= limit - 1);
    part->digits += absl::bit_width(static_cast<uint32_t>(std::abs(code)));
  }
}

}  // namespace

std::vector<CodeCount> CountCodes(absl::Span<const uint8_t> planes, const std::vector<int>& bits,
                                  LatentPacking packing, int64_t tokens) {
  const std::vector<LatentPlane> layout = PlanesOf(bits, packing, tokens);
  std::vector<CodeCount> parts;
  for (int64_t first = 0; first < tokens; first += kRangeTokens) {
    const int64_t count = std::min(kRangeTokens, tokens - first);
    CodeCount part;
    part.codes = count * static_cast<int64_t>(bits.size());
    for (const LatentPlane& plane : layout) Count(planes.data(), plane, first, count, &part);
    parts.push_back(part);
  }
  return parts;
}

double EndShare(const CodeCount& part, int64_t rank) {
  return static_cast<double>(part.at_ends) / static_cast<double>(kRangeTokens * rank);
}

double Digits(const CodeCount& part, int64_t rank) {
  if (part.codes < kRangeTokens * rank) return 0;
  return static_cast<double>(part.digits) / static_cast<double>(part.codes);
}

int64_t MostEndCodesAllowed(double expected_share, int64_t rank) {
  const double share = std::max(kLeastShare, kRoom * expected_share);
  const auto codes = static_cast<int64_t>(std::ceil(share * static_cast<double>(kRangeTokens * rank)));
  return std::max(kLeastCodes, codes);
}

double MostDigitsAllowed(double expected) {
  return expected > 0 ? kDigitsRoom * expected : std::numeric_limits<double>::infinity();
}

absl::Status CheckCodeRange(const AludelShape& shape, size_t group, absl::Span<const CodeCount> parts) {
  const AludelGroup& coded = shape.groups[group];
  const std::string layers =
      absl::StrFormat("layers %d-%d", coded.first_layer, coded.first_layer + coded.layers - 1);
  constexpr absl::string_view kWhy = "the prompt is unlike what the codec was fitted to";
  const int64_t ends_allowed = MostEndCodesAllowed(shape.range->end_share, coded.rank);
  const double digits = group < shape.range->digits.size() ? shape.range->digits[group] : 0;
  for (const CodeCount& part : parts) {
    if (part.at_ends > ends_allowed) {
      return absl::OutOfRangeError(absl::StrFormat(
          "%s: %d of %d codes are at the end of their range (artifact expects at most %.2g %%, and %d codes "
          "are taken): %s",
          layers, part.at_ends, part.codes, 100 * shape.range->end_share, ends_allowed, kWhy));
    }
    if (Digits(part, coded.rank) > MostDigitsAllowed(digits)) {
      return absl::OutOfRangeError(
          absl::StrFormat("%s: codes have %.3f binary digits on average (artifact expects at most %.3f, and "
                          "%.3f are taken): %s",
                          layers, Digits(part, coded.rank), digits, MostDigitsAllowed(digits), kWhy));
    }
  }
  return absl::OkStatus();
}

CodeRange Union(const CodeRange& a, const CodeRange& b) {
  CodeRange both{std::max(a.end_share, b.end_share), a.digits.empty() ? b.digits : a.digits};
  if (a.digits.size() != b.digits.size()) return both;
  for (size_t g = 0; g < both.digits.size(); ++g) both.digits[g] = std::max(a.digits[g], b.digits[g]);
  return both;
}

}  // namespace aludel
