#include "runtime/codec/lossless/split_planes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/rans/rans_stream.h"
#include "runtime/codec/rans/rans_table.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// What the first byte says of the exponents.
constexpr uint8_t kStored = 0;
constexpr uint8_t kCoded = 1;

// Lanes of fewer symbols would cost more than half a percent of the frame.
constexpr size_t kSymbolsPerLane = 512;

// Code, first exponent, exponents - 1; then frequencies and the coded bytes' count, then these.
constexpr size_t kFixedBytes = 3;

void Split(absl::Span<const Bf16> numbers, uint8_t* exponents, uint8_t* rest) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint16_t bits = numbers[i].bits;
    exponents[i] = static_cast<uint8_t>(bits >> 7);
    rest[i] = static_cast<uint8_t>((bits >> 8 & 0x80) | (bits & 0x7f));
  }
}

void Join(const uint8_t* exponents, uint8_t first, const uint8_t* rest, absl::Span<Bf16> numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto exponent = static_cast<uint8_t>(exponents[i] + first);
    numbers[i].bits = static_cast<uint16_t>((rest[i] & 0x80) << 8 | exponent << 7 | (rest[i] & 0x7f));
  }
}

std::array<uint64_t, kMaxRansSymbols> Count(absl::Span<const uint8_t> symbols) {
  // Neighbors are often equal, and one counter would wait for itself.
  std::array<std::array<uint32_t, kMaxRansSymbols>, 4> parts = {};
  size_t i = 0;
  for (; i + 4 <= symbols.size(); i += 4) {
    for (size_t part = 0; part < 4; ++part) ++parts[part][symbols[i + part]];
  }
  for (; i < symbols.size(); ++i) ++parts[0][symbols[i]];
  std::array<uint64_t, kMaxRansSymbols> counts = {};
  for (const auto& part : parts) {
    for (size_t symbol = 0; symbol < part.size(); ++symbol) counts[symbol] += part[symbol];
  }
  return counts;
}

// Table and coded exponents in `out`, exponents then standing above their first one; 0 where stored ones take less.
size_t CodeExponents(std::vector<uint8_t>& exponents, uint8_t* out) {
  const auto counts = Count(exponents);
  const auto present = [](uint64_t count) { return count > 0; };
  const auto begin = std::find_if(counts.begin(), counts.end(), present);
  const auto end = std::find_if(counts.rbegin(), counts.rend(), present).base();
  const std::vector<uint16_t> frequencies = RansFrequencies({&*begin, static_cast<size_t>(end - begin)});
  const size_t head = kFixedBytes + frequencies.size() * sizeof(uint16_t) + sizeof(uint32_t);
  if (head >= exponents.size()) return 0;
  const auto first = static_cast<uint8_t>(begin - counts.begin());
  for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(exponent - first);
  const int lanes = RansLanes(exponents.size(), kSymbolsPerLane);
  std::vector<uint8_t> coded(MaxRansBytes(exponents.size(), lanes));
  const absl::StatusOr<RansTable> table = RansTable::Create(frequencies);
  ALUDEL_CHECK(table.ok());
  const RansRun run{&*table, exponents.size()};
  const auto bytes = static_cast<uint32_t>(
      RansEncode(absl::MakeConstSpan(&run, 1), exponents, lanes, absl::MakeSpan(coded)));
  if (head + bytes >= 1 + exponents.size()) {
    for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(exponent + first);
    return 0;
  }
  const uint8_t fixed[kFixedBytes] = {kCoded, first, static_cast<uint8_t>(frequencies.size() - 1)};
  out = std::copy_n(fixed, kFixedBytes, out);
  std::memcpy(out, frequencies.data(), frequencies.size() * sizeof(uint16_t));
  out += frequencies.size() * sizeof(uint16_t);
  std::memcpy(out, &bytes, sizeof(bytes));
  std::copy_n(coded.data(), bytes, out + sizeof(bytes));
  return head + bytes;
}

absl::Status EndsEarly(size_t bytes) {
  return absl::DataLossError(absl::StrFormat("split numbers end early: %d bytes are left", bytes));
}

// Takes `count` bytes from the front of `bytes`.
absl::StatusOr<absl::Span<const uint8_t>> Take(absl::Span<const uint8_t>* bytes, size_t count) {
  if (bytes->size() < count) return EndsEarly(bytes->size());
  const absl::Span<const uint8_t> taken = bytes->first(count);
  bytes->remove_prefix(count);
  return taken;
}

// Exponents above `first` in `exponents`.
absl::Status DecodeExponents(absl::Span<const uint8_t>* bytes, absl::Span<uint8_t> exponents,
                             uint8_t* first) {
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> range, Take(bytes, 2));
  *first = range[0];
  const size_t count = size_t{range[1]} + 1;
  if (*first + count > kMaxRansSymbols) {
    return absl::DataLossError(
        absl::StrFormat("split numbers have exponents [%d, %d), want at most 256", *first, *first + count));
  }
  std::vector<uint16_t> frequencies(count);
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> table_bytes, Take(bytes, count * sizeof(uint16_t)));
  std::memcpy(frequencies.data(), table_bytes.data(), table_bytes.size());
  ALUDEL_ASSIGN_OR_RETURN(const RansTable table, RansTable::Create(frequencies));
  uint32_t coded_bytes = 0;
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> length, Take(bytes, sizeof(coded_bytes)));
  std::memcpy(&coded_bytes, length.data(), sizeof(coded_bytes));
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> coded, Take(bytes, coded_bytes));
  const RansRun run{&table, exponents.size()};
  return RansDecode(absl::MakeConstSpan(&run, 1), coded, RansLanes(exponents.size(), kSymbolsPerLane),
                    exponents);
}

}  // namespace

size_t CodeSplit(absl::Span<const Bf16> numbers, absl::Span<uint8_t> out) {
  const size_t count = numbers.size();
  ALUDEL_CHECK(count > 0 && out.size() >= MaxSplitBytes(count));
  std::vector<uint8_t> exponents(count);
  // Where it stands behind stored exponents; coded ones end before.
  uint8_t* const rest = out.data() + 1 + count;
  Split(numbers, exponents.data(), rest);
  const size_t bytes = CodeExponents(exponents, out.data());
  if (bytes == 0) {
    out[0] = kStored;
    std::copy(exponents.begin(), exponents.end(), out.begin() + 1);
    return 1 + 2 * count;
  }
  std::memmove(out.data() + bytes, rest, count);
  return bytes + count;
}

absl::Status DecodeSplit(absl::Span<const uint8_t>* bytes, absl::Span<Bf16> numbers) {
  const size_t count = numbers.size();
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> code, Take(bytes, 1));
  if (code[0] == kStored) {
    ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> both, Take(bytes, 2 * count));
    Join(both.data(), 0, both.data() + count, numbers);
    return absl::OkStatus();
  }
  if (code[0] != kCoded) {
    return absl::DataLossError(
        absl::StrFormat("split numbers begin with %d, want %d or %d", code[0], kStored, kCoded));
  }
  std::vector<uint8_t> exponents(count);
  uint8_t first = 0;
  ALUDEL_RETURN_IF_ERROR(DecodeExponents(bytes, absl::MakeSpan(exponents), &first));
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> rest, Take(bytes, count));
  Join(exponents.data(), first, rest.data(), numbers);
  return absl::OkStatus();
}

}  // namespace aludel
