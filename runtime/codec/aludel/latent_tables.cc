#include "runtime/codec/aludel/latent_tables.h"

#include <algorithm>
#include <array>

#include "kernels/check.h"

namespace aludel {
namespace {

// Fractions of 2^32.
constexpr uint64_t kOne = uint64_t{1} << 32;
uint64_t Product(uint64_t a, uint64_t b) { return a * b >> 32; }

// The logistic tail u / (1 + u), in units of 2^-31.
constexpr uint64_t kAll = uint64_t{1} << 31;
uint64_t Tail(uint64_t u) { return (u << 31) / (kOne + u); }

uint64_t FromDecay(float decay) {  // exp(-1 / (2 s))
  ALUDEL_CHECK(decay >= kMinDecay && decay <= kMaxDecay);
  return static_cast<uint64_t>(static_cast<double>(decay) * static_cast<double>(kOne));
}

// Tails of codes at and above 2^dropped, 2 * 2^dropped, ...: above each of them less 1/2.
template <size_t kCount>
std::array<uint64_t, kCount> TailsOf(float decay, int dropped) {
  const uint64_t first = FromDecay(decay);
  uint64_t ratio = Product(first, first);  // from code to code
  uint64_t u = first;
  for (int i = 0; i < dropped; ++i, ratio = Product(ratio, ratio)) u = Product(u, ratio);
  std::array<uint64_t, kCount> tails;
  for (size_t j = 0; j < kCount; ++j, u = Product(u, ratio)) tails[j] = Tail(u);
  return tails;
}

// The same where symbols stand for many codes, 2^low_bits each: symbol m begins at m of its own width, about.
std::array<uint64_t, 129> WideTails(float decay, int low_bits) {
  const uint64_t first = FromDecay(decay);
  uint64_t ratio = Product(first, first);
  for (int i = 0; i < low_bits; ++i) ratio = Product(ratio, ratio);
  std::array<uint64_t, 129> tails;
  uint64_t u = kOne;
  for (int m = 0; m <= 128; ++m, u = Product(u, ratio)) tails[m] = Tail(u);
  return tails;
}

// Of kRansTotal, steps of a fourth root of 2 for bits, a square root for what is rare.
constexpr std::array<uint16_t, 21> kBecomesOne = {1,  2,  3,   4,   6,   8,   11,  16,  23,   32,  45,
                                                  64, 91, 128, 181, 256, 362, 512, 724, 1024, 1365};
constexpr std::array<uint16_t, 9> kBitIsOne = {512, 609, 724, 861, 1024, 1218, 1448, 1722, 2048};

// Of the odds the first nearest to part / whole.
template <size_t kCount>
int Nearest(const std::array<uint16_t, kCount>& odds, uint64_t part, uint64_t whole) {
  const auto distance = [&](uint16_t one) {
    const auto apart = static_cast<int64_t>(one * whole) - static_cast<int64_t>(part * kRansTotal);
    return apart < 0 ? -apart : apart;
  };
  return static_cast<int>(
      std::min_element(odds.begin(), odds.end(),
                       [&](uint16_t a, uint16_t b) { return distance(a) < distance(b); }) -
      odds.begin());
}

}  // namespace

std::vector<uint16_t> LatentFrequencies(int bits, float decay, int dropped) {
  ALUDEL_CHECK(bits >= 1 && bits <= kMaxLatentBits && dropped >= 0 && dropped < bits);
  const int kept = bits - dropped;
  const int half = 1 << (std::min(kept, kLatentSymbolBits) - 1);
  const bool wide = kept > kLatentSymbolBits;
  const auto tails = wide ? WideTails(decay, bits - kLatentSymbolBits) : TailsOf<129>(decay, dropped);
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

RefinementChoice ChooseRefinement(float decay, int level) {
  constexpr int kBits = static_cast<int>(kBecomesOne.size());  // where tables of bits begin
  const auto tails = TailsOf<6>(decay, level);                 // at and above 1 to 6 of 2^level
  return {Nearest(kBecomesOne, tails[0] - tails[1], kAll - 2 * tails[1]),
          kBits + Nearest(kBitIsOne, tails[2] - tails[3], tails[1] - tails[3]),
          kBits + Nearest(kBitIsOne, tails[4] - tails[5], tails[3] - tails[5])};
}

const std::vector<RansTable>& Refinements() {
  static const auto& tables = *new std::vector<RansTable>([] {
    std::vector<RansTable> made;
    for (const uint16_t odds : kBecomesOne) {
      const auto rest = static_cast<uint16_t>(kRansTotal - 2 * odds);
      made.push_back(RansTable::Create({rest, odds, odds}).value());
    }
    for (const uint16_t odds : kBitIsOne) {
      made.push_back(RansTable::Create({static_cast<uint16_t>(kRansTotal - odds), odds}).value());
    }
    return made;
  }());
  return tables;
}

}  // namespace aludel
