#include "runtime/codec/aludel/latent_coder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/aludel/latent_tables.h"
#include "runtime/codec/aludel/low_bits.h"
#include "runtime/status_macros.h"

namespace aludel {

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
  return LowBitBytes(bits, tokens) + MaxRansBytes(symbols, LatentLanes(symbols));
}

std::vector<RansRun> RansCoder::Runs(int64_t tokens) const {
  std::vector<RansRun> runs;
  for (const size_t table : table_of_) runs.push_back({&tables_[table], static_cast<size_t>(tokens)});
  return runs;
}

size_t RansCoder::Encode(absl::Span<const uint8_t> planes, int64_t tokens,
                         absl::Span<uint8_t> payload) const {
  ALUDEL_CHECK(payload.size() >= MaxBytes(scale_.bits, tokens));
  const std::vector<uint8_t> symbols = SplitLowBits(planes, scale_.bits, tokens, payload.data());
  const size_t low_bytes = LowBitBytes(scale_.bits, tokens);
  const int lanes = LatentLanes(symbols.size());
  const size_t bytes = low_bytes + RansEncode(Runs(tokens), symbols, lanes, payload.subspan(low_bytes));
  if (bytes > 0) return bytes;
  payload[0] = 0;  // no frame is empty; a state of 0 says what no state says
  return 1;
}

absl::StatusOr<PlaneScale> RansCoder::Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                             std::vector<uint8_t>* planes) const {
  const size_t low_bytes = LowBitBytes(scale_.bits, tokens);
  if (payload.size() < low_bytes) {
    return absl::DataLossError(
        absl::StrFormat("latents are %d bytes, want at least %d (%d tokens of rank %d)", payload.size(),
                        low_bytes, tokens, scale_.bits.size()));
  }
  std::vector<uint8_t> symbols(scale_.bits.size() * static_cast<size_t>(tokens));
  ALUDEL_RETURN_IF_ERROR(RansDecode(Runs(tokens), payload.subspan(low_bytes), LatentLanes(symbols.size()),
                                    absl::MakeSpan(symbols)));
  JoinLowBits(symbols, payload.data(), scale_.bits, tokens, planes);
  return scale_;
}

}  // namespace aludel
