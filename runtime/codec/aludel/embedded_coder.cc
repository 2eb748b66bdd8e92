#include "runtime/codec/aludel/embedded_coder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Bytes = absl::Span<const uint8_t>;

// Parts of a cut code's own step in which its mean is given: 2^3, an eighth.
constexpr int kMeanBits = 3;

// A plane's length in front of it: 7 bits a byte, the lowest first, a high bit where more follow.
size_t PutLength(size_t length, uint8_t* out) {
  size_t bytes = 0;
  for (; length >= 0x80; length >>= 7) out[bytes++] = static_cast<uint8_t>(length | 0x80);
  out[bytes++] = static_cast<uint8_t>(length);
  return bytes;
}

// The plane at the front of `payload`, which is moved behind it. One length has one form.
absl::StatusOr<Bytes> TakePlane(Bytes* payload) {
  size_t length = 0;
  for (size_t i = 0; i < std::min(kMaxPlaneLengthBytes, payload->size()); ++i) {
    const uint8_t byte = (*payload)[i];
    length |= static_cast<size_t>(byte & 0x7f) << 7 * i;
    if (byte >= 0x80) continue;
    if (i > 0 && byte == 0) break;
    if (length > payload->size() - i - 1) {
      return absl::DataLossError(absl::StrFormat("a plane of latents is to have %d bytes, %d are left",
                                                 length, payload->size() - i - 1));
    }
    const Bytes plane = payload->subspan(i + 1, length);
    payload->remove_prefix(i + 1 + length);
    return plane;
  }
  return absl::DataLossError(
      absl::StrFormat("no plane of latents begins where %d bytes are left", payload->size()));
}

// The grid of some of its latents.
LatentGrid Part(const LatentGrid& grid, const std::vector<size_t>& latents) {
  LatentGrid part{.step = grid.step};
  for (const size_t i : latents) {
    part.bits.push_back(grid.bits[i]);
    part.decays.push_back(grid.decays[i]);
  }
  return part;
}

std::vector<size_t> WithMoreBits(const LatentGrid& grid, int level) {
  std::vector<size_t> latents;
  for (size_t i = 0; i < grid.bits.size(); ++i) {
    if (grid.bits[i] > level) latents.push_back(i);
  }
  return latents;
}

int32_t WithoutLowBits(int32_t code, int level) {
  const int32_t magnitude = std::abs(code) >> level;
  return code < 0 ? -magnitude : magnitude;
}

int32_t ReadCode(const uint8_t* planes, const LatentPlane& plane, int64_t token) {
  uint32_t code = planes[plane.offset + token];
  if (plane.high_offset > 0) code |= uint32_t{planes[plane.high_offset + token]} << 8;
  return SignExtend(code, plane.bits);
}

void WriteCode(int32_t code, const LatentPlane& plane, int64_t token, uint8_t* planes) {
  planes[plane.offset + token] = static_cast<uint8_t>(code);
  if (plane.high_offset > 0) planes[plane.high_offset + token] = static_cast<uint8_t>(code >> 8);
}

// What a code is above the magnitude that 2^level times its own bits have, on average, in parts of 2^level.
double MeanAbove(float decay, int level) {
  const double ratio = double{decay} * decay;
  double sum = 0, weights = 0, weight = 1;
  for (int j = 0; j < 1 << level; ++j, weight *= ratio) {
    sum += weight * j;
    weights += weight;
  }
  return std::ldexp(sum / weights, -level);
}

// Places of the symbols of three kinds, which tokens take in turn by what their codes are so far: 0, 1 or -1, or more. An
// index and no branches, as kinds are close to random.
template <typename Byte>
class ByKind {
 public:
  ByKind(Byte* symbols, const std::array<size_t, 3>& begin)
      : next_{symbols + begin[0], symbols + begin[1], symbols + begin[2]} {}

  Byte& Next(int32_t code) { return *next_[std::min(std::abs(code), 2)]++; }

 private:
  std::array<Byte*, 3> next_;
};

}  // namespace

absl::StatusOr<absl::Span<const uint8_t>> TruncatePlanes(absl::Span<const uint8_t> payload, int planes) {
  Bytes rest = payload;
  size_t kept = 0;
  int found = 0;
  do {
    ALUDEL_RETURN_IF_ERROR(TakePlane(&rest).status());
    if (++found <= planes) kept = payload.size() - rest.size();
  } while (!rest.empty());
  return payload.first(kept);
}

absl::StatusOr<int> CountPlanes(absl::Span<const uint8_t> payload) {
  int planes = 0;
  do {
    ALUDEL_RETURN_IF_ERROR(TakePlane(&payload).status());
    ++planes;
  } while (!payload.empty());
  return planes;
}

EmbeddedCoder::EmbeddedCoder(const LatentGrid& grid, int planes)
    : grid_(grid),
      planes_(planes),
      bound_(grid),
      base_latents_(WithMoreBits(grid, grid.planes - 1)),
      base_(Part(grid, base_latents_), grid.planes - 1) {
  ALUDEL_CHECK(grid.planes >= 1 && grid.planes <= kMaxEmbeddedPlanes && planes >= 0 && planes <= grid.planes);
  for (const size_t i : base_latents_) base_bits_.push_back(grid.bits[i] - base_level());
  refinements_.resize(static_cast<size_t>(base_level()));
  for (int level = 0; level < base_level(); ++level) {
    for (const float decay : grid.decays) refinements_[level].push_back(ChooseRefinement(decay, level));
  }
}

std::vector<size_t> EmbeddedCoder::LatentsAbove(int level) const { return WithMoreBits(grid_, level); }

size_t EmbeddedCoder::Encode(absl::Span<const uint8_t> planes, int64_t tokens,
                             absl::Span<uint8_t> payload) const {
  ALUDEL_CHECK(payload.size() >= bound_.Bytes(tokens));
  const std::vector<LatentPlane> layout = PlanesOf(grid_.bits, LatentPacking::kEmbedded, tokens);
  Codes codes;
  codes.reserve(layout.size() * static_cast<size_t>(tokens));
  for (const LatentPlane& plane : layout) {
    for (int64_t t = 0; t < tokens; ++t) codes.push_back(ReadCode(planes.data(), plane, t));
  }
  // A plane by itself is bound by what any symbol may take.
  const size_t symbols = layout.size() * static_cast<size_t>(tokens);
  std::vector<uint8_t> plane(
      std::max(RansCoder::MaxBytes(base_bits_, tokens), MaxRansBytes(symbols, LatentLanes(symbols))));
  size_t at = 0;
  for (int p = 0; p < (planes_ == 0 ? grid_.planes : planes_); ++p) {
    const size_t bytes = p == 0 ? EncodeBase(codes, tokens, absl::MakeSpan(plane))
                                : EncodeRefinement(codes, base_level() - p, tokens, absl::MakeSpan(plane));
    ALUDEL_CHECK(at + kMaxPlaneLengthBytes + bytes <= payload.size());
    at += PutLength(bytes, payload.data() + at);
    std::copy_n(plane.data(), bytes, payload.data() + at);
    at += bytes;
  }
  return at;
}

size_t EmbeddedCoder::EncodeBase(const Codes& codes, int64_t tokens, absl::Span<uint8_t> out) const {
  const std::vector<LatentPlane> layout = PlanesOf(base_bits_, LatentPacking::kRans, tokens);
  std::vector<uint8_t> planes(PlaneBytes(base_bits_, LatentPacking::kRans, tokens));
  for (size_t i = 0; i < layout.size(); ++i) {
    const int32_t* const from = codes.data() + base_latents_[i] * static_cast<size_t>(tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      WriteCode(WithoutLowBits(from[t], base_level()), layout[i], t, planes.data());
    }
  }
  return base_.Encode(planes, tokens, out);
}

absl::Status EmbeddedCoder::DecodeBase(absl::Span<const uint8_t> bytes, int64_t tokens, Codes* codes) const {
  std::vector<uint8_t> planes;
  ALUDEL_RETURN_IF_ERROR(base_.Decode(bytes, tokens, &planes).status());
  const std::vector<LatentPlane> layout = PlanesOf(base_bits_, LatentPacking::kRans, tokens);
  for (size_t i = 0; i < layout.size(); ++i) {
    int32_t* const to = codes->data() + base_latents_[i] * static_cast<size_t>(tokens);
    for (int64_t t = 0; t < tokens; ++t) to[t] = ReadCode(planes.data(), layout[i], t);
  }
  return absl::OkStatus();
}

EmbeddedCoder::Symbols EmbeddedCoder::PlaceSymbols(absl::Span<const int32_t> above, int level,
                                                   int64_t tokens) const {
  const std::vector<size_t> latents = LatentsAbove(level);
  Symbols symbols;
  std::vector<size_t> of_table(Refinements().size());
  for (const size_t i : latents) {
    size_t zero = 0, one = 0;
    for (const int32_t code : above.subspan(i * tokens, tokens)) {
      zero += static_cast<size_t>(code == 0);
      one += static_cast<size_t>(std::abs(code) == 1);
    }
    const RefinementChoice& tables = refinements_[level][i];
    symbols.begin.push_back({of_table[tables.zero], 0, 0});
    of_table[tables.zero] += zero;
    symbols.begin.back()[1] = of_table[tables.one];
    of_table[tables.one] += one;
    symbols.begin.back()[2] = of_table[tables.more];
    of_table[tables.more] += static_cast<size_t>(tokens) - zero - one;
  }
  std::vector<size_t> before(of_table.size());
  for (size_t t = 0, all = 0; t < of_table.size(); all += of_table[t++]) {
    before[t] = all;
    if (of_table[t] > 0) symbols.runs.push_back({&Refinements()[t], of_table[t]});
  }
  for (size_t i = 0; i < latents.size(); ++i) {
    const RefinementChoice& tables = refinements_[level][latents[i]];
    symbols.begin[i][0] += before[tables.zero];
    symbols.begin[i][1] += before[tables.one];
    symbols.begin[i][2] += before[tables.more];
  }
  return symbols;
}

size_t EmbeddedCoder::EncodeRefinement(const Codes& codes, int level, int64_t tokens,
                                       absl::Span<uint8_t> out) const {
  Codes above(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) above[i] = std::abs(codes[i]) >> (level + 1);
  const std::vector<size_t> latents = LatentsAbove(level);
  const Symbols placed = PlaceSymbols(above, level, tokens);
  std::vector<uint8_t> symbols(latents.size() * static_cast<size_t>(tokens));
  for (size_t i = 0; i < latents.size(); ++i) {
    ByKind<uint8_t> by_kind(symbols.data(), placed.begin[i]);
    const size_t first = latents[i] * static_cast<size_t>(tokens);
    for (size_t at = first; at < first + static_cast<size_t>(tokens); ++at) {
      const int32_t bit = std::abs(codes[at]) >> level & 1;
      const auto negative = static_cast<int>(above[at] == 0) & static_cast<int>(codes[at] < 0);
      by_kind.Next(above[at]) = static_cast<uint8_t>(bit << negative);
    }
  }
  return RansEncode(placed.runs, symbols, LatentLanes(symbols.size()), out);
}

absl::Status EmbeddedCoder::DecodeRefinement(absl::Span<const uint8_t> bytes, int level, int64_t tokens,
                                             Codes* codes) const {
  const std::vector<size_t> latents = LatentsAbove(level);
  const Symbols placed = PlaceSymbols(*codes, level, tokens);
  std::vector<uint8_t> symbols(latents.size() * static_cast<size_t>(tokens));
  ALUDEL_RETURN_IF_ERROR(
      RansDecode(placed.runs, bytes, LatentLanes(symbols.size()), absl::MakeSpan(symbols)));
  for (size_t i = 0; i < latents.size(); ++i) {
    ByKind<const uint8_t> by_kind(symbols.data(), placed.begin[i]);
    for (int32_t& code : absl::MakeSpan(*codes).subspan(latents[i] * tokens, tokens)) {
      const int32_t symbol = by_kind.Next(code);
      const int32_t sign = code >> 31;  // 0 or -1
      // A bit away from 0; a 2, which only 0 meets, is -1.
      code = 2 * code + ((symbol ^ sign) - sign) - 3 * (symbol >> 1);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PlaneScale> EmbeddedCoder::Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                                 std::vector<uint8_t>* planes) const {
  Codes codes(grid_.bits.size() * static_cast<size_t>(tokens));
  const int most = planes_ == 0 ? grid_.planes : planes_;
  int level = grid_.planes;
  do {
    if (level == grid_.planes - most) {
      return absl::DataLossError(absl::StrFormat(
          "%d bytes follow the last of %d planes of latents, want none", payload.size(), most));
    }
    --level;
    ALUDEL_ASSIGN_OR_RETURN(const Bytes plane, TakePlane(&payload));
    const absl::Status status = level == base_level() ? DecodeBase(plane, tokens, &codes)
                                                      : DecodeRefinement(plane, level, tokens, &codes);
    if (status.ok()) continue;
    return absl::DataLossError(
        absl::StrFormat("plane %d of latents: %s", base_level() - level, status.message()));
  } while (!payload.empty());
  if (planes_ > 0 && grid_.planes - level < planes_) {
    return absl::DataLossError(
        absl::StrFormat("latents are %d planes, want %d", grid_.planes - level, planes_));
  }
  return WritePlanes(codes, level, tokens, planes);
}

PlaneScale EmbeddedCoder::WritePlanes(const Codes& codes, int level, int64_t tokens,
                                      std::vector<uint8_t>* planes) const {
  const int most = *std::max_element(grid_.bits.begin(), grid_.bits.end());
  const int mean_bits = level == 0 ? 0 : std::clamp(kMaxLatentBits - (most - level), 0, kMeanBits);
  PlaneScale scale{{}, std::ldexp(grid_.step, level - mean_bits)};
  for (const int bits : grid_.bits) {
    scale.bits.push_back(std::clamp(bits - level + mean_bits, 1, kMaxLatentBits));
  }
  const std::vector<LatentPlane> layout = PlanesOf(scale.bits, LatentPacking::kEmbedded, tokens);
  planes->resize(PlaneBytes(scale.bits, LatentPacking::kEmbedded, tokens));
  for (size_t i = 0; i < layout.size(); ++i) {
    const auto mean =
        static_cast<int32_t>(std::lround(std::ldexp(MeanAbove(grid_.decays[i], level), mean_bits)));
    // What no encoder writes may lie beyond the range, which has no middle: its end then.
    const int32_t limit = 1 << (layout[i].bits - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      const int32_t code = codes[i * static_cast<size_t>(tokens) + static_cast<size_t>(t)];
      const int32_t magnitude = code == 0 ? 0 : (std::abs(code) << mean_bits) + mean;
      WriteCode(std::clamp(code < 0 ? -magnitude : magnitude, -limit, limit - 1), layout[i], t,
                planes->data());
    }
  }
  return scale;
}

}  // namespace aludel
