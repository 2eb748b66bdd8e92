#include "runtime/codec/aludel/low_bits.h"

#include <algorithm>

#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/latent_tables.h"

namespace aludel {
namespace {

// Bits of a latent's codes below its symbols.
int LowBits(int bits) { return std::max(0, bits - kLatentSymbolBits); }

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

size_t LowBitBytes(const std::vector<int>& bits, int64_t tokens) {
  int64_t all = 0;
  for (const int b : bits) all += tokens * LowBits(b);
  return static_cast<size_t>((all + 7) / 8);
}

std::vector<uint8_t> SplitLowBits(absl::Span<const uint8_t> planes, const std::vector<int>& bits,
                                  int64_t tokens, uint8_t* low) {
  const std::vector<LatentPlane> layout = PlanesOf(bits, LatentPacking::kRans, tokens);
  std::vector<uint8_t> symbols(bits.size() * static_cast<size_t>(tokens));
  uint8_t* to = symbols.data();
  LowBitWriter writer(low);
  for (size_t i = 0; i < bits.size(); ++i, to += tokens) {
    const uint8_t* const from = planes.data() + layout[i].offset;
    if (layout[i].high_offset == 0) {
      std::copy_n(from, tokens, to);
      continue;
    }
    writer.Split(from, planes.data() + layout[i].high_offset, tokens, LowBits(bits[i]), to);
  }
  writer.Finish();
  return symbols;
}

void JoinLowBits(absl::Span<const uint8_t> symbols, const uint8_t* low, const std::vector<int>& bits,
                 int64_t tokens, std::vector<uint8_t>* planes) {
  const std::vector<LatentPlane> layout = PlanesOf(bits, LatentPacking::kRans, tokens);
  planes->resize(PlaneBytes(bits, LatentPacking::kRans, tokens));
  const uint8_t* from = symbols.data();
  LowBitReader reader(low);
  for (size_t i = 0; i < bits.size(); ++i, from += tokens) {
    uint8_t* const to = planes->data() + layout[i].offset;
    if (layout[i].high_offset == 0) {
      std::copy_n(from, tokens, to);
      continue;
    }
    reader.Join(from, tokens, LowBits(bits[i]), to, planes->data() + layout[i].high_offset);
  }
}

}  // namespace aludel
