#include "runtime/codec/aludel/latent_coder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/latent_tables.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Bits of a latent's codes below its symbols, sent as they are.
int LowBits(int bits) { return std::max(0, bits - kLatentSymbolBits); }

size_t LowBytes(const std::vector<int>& bits, int64_t tokens) {
  int64_t all = 0;
  for (const int b : bits) all += tokens * LowBits(b);
  return static_cast<size_t>((all + 7) / 8);
}

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

int LatentLanes(size_t symbols) {
  // Lanes of fewer symbols would cost more than about half a percent of a frame.
  constexpr size_t kSymbolsPerLane = 2048;
  return RansLanes(symbols, kSymbolsPerLane);
}

RansCoder::RansCoder(const LatentGrid& grid, int dropped) {
  ALUDEL_CHECK(grid.decays.size() == grid.bits.size());
  scale_.step = std::ldexp(grid.step, dropped);
  std::map<std::pair<int, float>, size_t> tables;
  for (size_t i = 0; i < grid.bits.size(); ++i) {
    scale_.bits.push_back(grid.bits[i] - dropped);
    const auto [found, added] = tables.try_emplace({grid.bits[i], grid.decays[i]}, tables_.size());
    if (added) {
      absl::StatusOr<RansTable> table =
          RansTable::Create(LatentFrequencies(grid.bits[i], grid.decays[i], dropped));
      ALUDEL_CHECK(table.ok());
      tables_.push_back(*std::move(table));
    }
    table_of_.push_back(found->second);
  }
}

size_t RansCoder::MaxBytes(const std::vector<int>& bits, int64_t tokens) {
  const size_t symbols = bits.size() * static_cast<size_t>(tokens);
  return LowBytes(bits, tokens) + MaxRansBytes(symbols, LatentLanes(symbols));
}

std::vector<RansRun> RansCoder::Runs(int64_t tokens) const {
  std::vector<RansRun> runs;
  for (const size_t table : table_of_) runs.push_back({&tables_[table], static_cast<size_t>(tokens)});
  return runs;
}

size_t RansCoder::Encode(absl::Span<const uint8_t> planes, int64_t tokens,
                         absl::Span<uint8_t> payload) const {
  ALUDEL_CHECK(payload.size() >= MaxBytes(scale_.bits, tokens));
  const std::vector<LatentPlane> layout = PlanesOf(scale_.bits, LatentPacking::kRans, tokens);
  std::vector<uint8_t> symbols(scale_.bits.size() * static_cast<size_t>(tokens));
  uint8_t* to = symbols.data();
  LowBitWriter low_bits(payload.data());
  for (size_t i = 0; i < scale_.bits.size(); ++i, to += tokens) {
    const uint8_t* const low = planes.data() + layout[i].offset;
    if (layout[i].high_offset == 0) {
      std::copy_n(low, tokens, to);
      continue;
    }
    low_bits.Split(low, planes.data() + layout[i].high_offset, tokens, LowBits(scale_.bits[i]), to);
  }
  low_bits.Finish();
  const size_t low_bytes = LowBytes(scale_.bits, tokens);
  const int lanes = LatentLanes(symbols.size());
  return low_bytes + RansEncode(Runs(tokens), symbols, lanes, payload.subspan(low_bytes));
}

absl::StatusOr<PlaneScale> RansCoder::Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                             std::vector<uint8_t>* planes) const {
  const size_t low_bytes = LowBytes(scale_.bits, tokens);
  if (payload.size() < low_bytes) {
    return absl::DataLossError(
        absl::StrFormat("latents are %d bytes, want at least %d (%d tokens of rank %d)", payload.size(),
                        low_bytes, tokens, scale_.bits.size()));
  }
  std::vector<uint8_t> symbols(scale_.bits.size() * static_cast<size_t>(tokens));
  ALUDEL_RETURN_IF_ERROR(RansDecode(Runs(tokens), payload.subspan(low_bytes), LatentLanes(symbols.size()),
                                    absl::MakeSpan(symbols)));
  const std::vector<LatentPlane> layout = PlanesOf(scale_.bits, LatentPacking::kRans, tokens);
  planes->resize(PlaneBytes(scale_.bits, LatentPacking::kRans, tokens));
  const uint8_t* from = symbols.data();
  LowBitReader low_bits(payload.data());
  for (size_t i = 0; i < scale_.bits.size(); ++i, from += tokens) {
    uint8_t* const to = planes->data() + layout[i].offset;
    if (layout[i].high_offset == 0) {
      std::copy_n(from, tokens, to);
      continue;
    }
    low_bits.Join(from, tokens, LowBits(scale_.bits[i]), to, planes->data() + layout[i].high_offset);
  }
  return scale_;
}

}  // namespace aludel
