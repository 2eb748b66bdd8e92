#include "runtime/codec/rans/rans_table.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {

absl::StatusOr<RansTable> RansTable::Create(absl::Span<const uint16_t> frequencies) {
  const uint64_t total = std::accumulate(frequencies.begin(), frequencies.end(), uint64_t{0});
  if (frequencies.size() > kMaxRansSymbols || total != kRansTotal) {
    return absl::DataLossError(absl::StrFormat("frequencies of %d symbols come to %d, want %d of at most %d",
                                               frequencies.size(), total, kRansTotal, kMaxRansSymbols));
  }
  RansTable table;
  uint32_t start = 0;
  for (size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
    const uint32_t frequency = frequencies[symbol];
    if (frequency == 0) continue;
    const auto bits = static_cast<uint32_t>(std::bit_width(frequency - 1));
    const uint64_t scaled = uint64_t{1} << (31 + bits);
    table.coders_[symbol] = {static_cast<uint32_t>((scaled + frequency - 1) / frequency), frequency, start,
                             31 + bits};
    for (uint32_t i = 0; i < frequency; ++i) {
      table.slots_[start + i] = {static_cast<uint16_t>(frequency), static_cast<uint16_t>(i)};
      table.slot_symbols_[start + i] = static_cast<uint8_t>(symbol);
    }
    start += frequency;
  }
  return table;
}

std::vector<uint16_t> RansFrequencies(absl::Span<const uint64_t> counts) {
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  ALUDEL_CHECK(total > 0 && total < uint64_t{1} << 50 && counts.size() <= kMaxRansSymbols);
  std::vector<uint16_t> frequencies(counts.size());
  int64_t missing = kRansTotal;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const uint64_t rounded = (2 * counts[i] * kRansTotal + total) / (2 * total);
    frequencies[i] = static_cast<uint16_t>(std::max<uint64_t>(1, rounded));
    missing -= frequencies[i];
  }
  // What rounding left over costs least where it is the smallest part.
  while (missing != 0) {
    uint16_t& largest = *std::max_element(frequencies.begin(), frequencies.end());
    const int64_t change = std::clamp<int64_t>(missing, -((largest + 15) / 16), missing < 0 ? -1 : missing);
    largest = static_cast<uint16_t>(largest + change);
    missing -= change;
  }
  return frequencies;
}

}  // namespace aludel
