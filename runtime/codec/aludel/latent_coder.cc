#include "runtime/codec/aludel/latent_coder.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kSymbolBits = 8;
// Lanes of fewer symbols would cost more than about half a percent of a frame.
constexpr size_t kSymbolsPerLane = 2048;

// Bits of a latent's codes below its symbols, which look random and are sent as they are.
int LowBits(int bits) { return std::max(0, bits - kSymbolBits); }

size_t LowBytes(const std::vector<int>& bits, int64_t tokens) {
  int64_t all = 0;
  for (const int b : bits) all += tokens * LowBits(b);
  return static_cast<size_t>((all + 7) / 8);
}

// Fractions of 2^32.
constexpr uint64_t kOne = uint64_t{1} << 32;
uint64_t Product(uint64_t a, uint64_t b) { return a * b >> 32; }

// The logistic tail u / (1 + u), in units of 2^-31.
constexpr uint64_t kAll = uint64_t{1} << 31;
uint64_t Tail(uint64_t u) { return (u << 31) / (kOne + u); }

// The low bits of wide latents, one after the other, the least significant first.
class LowBitWriter {
 public:
  explicit LowBitWriter(uint8_t* out) : out_(out) {}

  // Symbols of a latent from the two planes of its codes, whose low bits are written.
  void Split(const uint8_t* low, const uint8_t* high, int64_t tokens, int low_bits, uint8_t* symbols) {
    for (int64_t t = 0; t < tokens; ++t) {
      const uint32_t code = low[t] | uint32_t{high[t]} << 8;
      symbols[t] = static_cast<uint8_t>(code >> low_bits);
      pending_ |= (code & ((1u << low_bits) - 1)) << filled_;
      for (filled_ += low_bits; filled_ >= 8; filled_ -= 8, pending_ >>= 8)
        *out_++ = static_cast<uint8_t>(pending_);
    }
  }
  void Finish() {
    if (filled_ > 0) *out_ = static_cast<uint8_t>(pending_);
  }

 private:
  uint8_t* out_;
  uint32_t pending_ = 0;
  int filled_ = 0;
};

class LowBitReader {
 public:
  explicit LowBitReader(const uint8_t* in) : in_(in) {}

  // The inverse of Split.
  void Join(const uint8_t* symbols, int64_t tokens, int low_bits, uint8_t* low, uint8_t* high) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (; filled_ < low_bits; filled_ += 8) pending_ |= uint32_t{*in_++} << filled_;
      const auto top = static_cast<uint32_t>(static_cast<int8_t>(symbols[t]));
      const uint32_t code = top << low_bits | (pending_ & ((1u << low_bits) - 1));
      low[t] = static_cast<uint8_t>(code);
      high[t] = static_cast<uint8_t>(code >> 8);
      pending_ >>= low_bits;
      filled_ -= low_bits;
    }
  }

 private:
  const uint8_t* in_;
  uint32_t pending_ = 0;
  int filled_ = 0;
};

}  // namespace

std::vector<uint16_t> LatentFrequencies(int bits, float decay) {
  ALUDEL_CHECK(bits >= 1 && bits <= kMaxLatentBits && decay >= kMinDecay && decay <= kMaxDecay);
  const int half = 1 << (std::min(bits, kSymbolBits) - 1);
  const auto first =
      static_cast<uint64_t>(static_cast<double>(decay) * static_cast<double>(kOne));  // exp(-1 / (2 s))
  uint64_t ratio = Product(first, first);  // exp(-1 / s), from code to code
  for (int i = 0; i < LowBits(bits); ++i) ratio = Product(ratio, ratio);
  // What lies above symbol m >= 0: above m + 1/2 where symbols are codes. Where they stand for many codes, symbol m
  // begins at m of its own width, about.
  const bool wide = LowBits(bits) > 0;
  std::array<uint64_t, 129> tails;
  uint64_t u = wide ? kOne : first;
  for (int m = 0; m <= half; ++m, u = Product(u, ratio)) tails[m] = Tail(u);
  // The part at symbol m and above it; what lies beyond the range is of the codes at its ends.
  const auto from = [&](int m) {
    if (m == -half) return kAll;
    if (m == half) return uint64_t{0};
    if (m <= 0) return kAll - tails[-m];
    return wide ? tails[m] : tails[m - 1];
  };
  std::vector<uint64_t> shares(kMaxRansSymbols);
  for (int m = -half; m < half; ++m)
    shares[static_cast<uint8_t>(m)] = std::max<uint64_t>(1, from(m) - from(m + 1));
  return RansFrequencies(shares);
}

LatentCoder::LatentCoder(const LatentGrid& grid) : bits_(grid.bits) {
  ALUDEL_CHECK(grid.decays.size() == grid.bits.size());
  std::map<std::pair<int, float>, size_t> tables;
  for (size_t i = 0; i < bits_.size(); ++i) {
    const auto [found, added] = tables.try_emplace({bits_[i], grid.decays[i]}, tables_.size());
    if (added) {
      absl::StatusOr<RansTable> table = RansTable::Create(LatentFrequencies(bits_[i], grid.decays[i]));
      ALUDEL_CHECK(table.ok());
      tables_.push_back(*std::move(table));
    }
    table_of_.push_back(found->second);
  }
}

size_t LatentCoder::MaxBytes(const std::vector<int>& bits, int64_t tokens) {
  const size_t symbols = bits.size() * static_cast<size_t>(tokens);
  return LowBytes(bits, tokens) + MaxRansBytes(symbols, RansLanes(symbols, kSymbolsPerLane));
}

std::vector<RansRun> LatentCoder::Runs(int64_t tokens) const {
  std::vector<RansRun> runs;
  for (const size_t table : table_of_) runs.push_back({&tables_[table], static_cast<size_t>(tokens)});
  return runs;
}

size_t LatentCoder::Encode(absl::Span<const uint8_t> planes, int64_t tokens,
                           absl::Span<uint8_t> payload) const {
  ALUDEL_CHECK(payload.size() >= MaxBytes(bits_, tokens));
  const std::vector<LatentPlane> layout = PlanesOf(bits_, LatentPacking::kRans, tokens);
  std::vector<uint8_t> symbols(bits_.size() * static_cast<size_t>(tokens));
  uint8_t* to = symbols.data();
  LowBitWriter low_bits(payload.data());
  for (size_t i = 0; i < bits_.size(); ++i, to += tokens) {
    const uint8_t* const low = planes.data() + layout[i].offset;
    if (layout[i].high_offset == 0) {
      std::copy_n(low, tokens, to);
      continue;
    }
    low_bits.Split(low, planes.data() + layout[i].high_offset, tokens, LowBits(bits_[i]), to);
  }
  low_bits.Finish();
  const size_t low_bytes = LowBytes(bits_, tokens);
  const int lanes = RansLanes(symbols.size(), kSymbolsPerLane);
  return low_bytes + RansEncode(Runs(tokens), symbols, lanes, payload.subspan(low_bytes));
}

absl::Status LatentCoder::Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                 absl::Span<uint8_t> planes) const {
  const size_t low_bytes = LowBytes(bits_, tokens);
  if (payload.size() < low_bytes) {
    return absl::DataLossError(
        absl::StrFormat("latents are %d bytes, want at least %d (%d tokens of rank %d)", payload.size(),
                        low_bytes, tokens, bits_.size()));
  }
  std::vector<uint8_t> symbols(bits_.size() * static_cast<size_t>(tokens));
  ALUDEL_RETURN_IF_ERROR(RansDecode(Runs(tokens), payload.subspan(low_bytes),
                                    RansLanes(symbols.size(), kSymbolsPerLane), absl::MakeSpan(symbols)));
  const std::vector<LatentPlane> layout = PlanesOf(bits_, LatentPacking::kRans, tokens);
  const uint8_t* from = symbols.data();
  LowBitReader low_bits(payload.data());
  for (size_t i = 0; i < bits_.size(); ++i, from += tokens) {
    uint8_t* const to = planes.data() + layout[i].offset;
    if (layout[i].high_offset == 0) {
      std::copy_n(from, tokens, to);
      continue;
    }
    low_bits.Join(from, tokens, LowBits(bits_[i]), to, planes.data() + layout[i].high_offset);
  }
  return absl::OkStatus();
}

}  // namespace aludel
