#include "runtime/codec/rans/rans_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {
namespace {

static_assert(std::endian::native == std::endian::little);

// States lie in [kLow, kLow << 16) between symbols: with 12-bit frequencies x / frequency is then one product of 32-bit
// numbers, and the rounding of states costs less than 0.001 bits a symbol.
constexpr uint32_t kLow = 1u << 15;
constexpr size_t kWord = sizeof(uint16_t);
constexpr size_t kState = sizeof(uint32_t);

// Where lanes begin. A single one begins with nothing: all of what it holds at its end is symbols. Several could not
// tell which of them still fills and which wants a word.
constexpr uint32_t FirstState(int lanes) { return lanes == 1 ? 0 : kLow; }

// Of a stream of one lane: all of it where there are no words behind, else what is left beside whole words.
size_t OnlyStateBytes(size_t stream_bytes) {
  return stream_bytes <= kState ? stream_bytes : kState - stream_bytes % 2;
}

inline void Put(const RansTable& table, uint8_t symbol, uint32_t& x, uint8_t*& words) {
  const RansTable::Coder& coder = table.coder(symbol);
  // Without a branch, here and in Refill: whether a word is full is close to random.
  const uint32_t full = x >> 19 >= coder.frequency;
  const auto word = static_cast<uint16_t>(x);
  std::memcpy(words - kWord, &word, kWord);
  words -= full * kWord;
  x ^= (x ^ x >> 16) & (0 - full);
  const auto quotient = static_cast<uint32_t>(uint64_t{x} * coder.reciprocal >> coder.shift);
  x += coder.start + quotient * (kRansTotal - coder.frequency);
}

inline uint8_t Take(const RansTable::Slot* slots, const uint8_t* symbols, uint32_t& x) {
  const uint32_t slot = x % kRansTotal;
  x = (x >> kRansBits) * slots[slot].frequency + slots[slot].offset;
  return symbols[slot];
}

// A word of `words`, which are moved on, where the state wants it.
inline void Refill(uint32_t& x, const uint8_t*& words) {
  uint16_t word;
  std::memcpy(&word, words, kWord);
  const uint32_t low = x < kLow;
  words += low * kWord;
  x ^= (x ^ (x << 16 | word)) & (0 - low);
}

template <int kLanes>
using States = std::array<uint32_t, kLanes>;

// Back to front, words behind `words`, which is moved to the first of them.
template <int kLanes>
States<kLanes> EncodeLanes(absl::Span<const RansRun> runs, absl::Span<const uint8_t> symbols,
                           uint8_t*& words) {
  States<kLanes> states;
  states.fill(FirstState(kLanes));
  size_t at = symbols.size();
  for (size_t r = runs.size(); r-- > 0;) {
    const RansTable& table = *runs[r].table;
    const size_t begin = at - runs[r].symbols;
    const auto one = [&] {
      --at;
      Put(table, symbols[at], states[at % kLanes], words);
    };
    while (at > begin && at % kLanes != 0) one();
    // A copy, whose fixed places can be registers.
    States<kLanes> lanes = states;
    uint8_t* to = words;
    for (; at - begin >= kLanes; at -= kLanes) {
      const uint8_t* const from = symbols.data() + at;
      to = [&]<size_t... kI>(uint8_t * next, std::index_sequence<kI...>) {
        (Put(table, from[-1 - static_cast<ptrdiff_t>(kI)], lanes[kLanes - 1 - kI], next), ...);
        return next;
      }
      (to, std::make_index_sequence<kLanes>());
    }
    words = to;
    states = lanes;
    while (at > begin) one();
  }
  return states;
}

template <int kLanes>
size_t Encode(absl::Span<const RansRun> runs, absl::Span<const uint8_t> symbols, absl::Span<uint8_t> out) {
  uint8_t* const end = out.data() + out.size();
  uint8_t* words = end;
  const States<kLanes> states = EncodeLanes<kLanes>(runs, symbols, words);
  const auto word_bytes = static_cast<size_t>(end - words);
  size_t state_bytes = kLanes * kState;
  if (kLanes == 1) {
    const auto bytes = static_cast<size_t>(std::bit_width(states[0]) + 7) / 8;
    state_bytes = word_bytes == 0 ? bytes : std::max<size_t>(bytes, kState - 1);
  }
  std::memmove(out.data() + state_bytes, words, word_bytes);
  std::memcpy(out.data(), states.data(), state_bytes);
  return state_bytes + word_bytes;
}

template <int kLanes>
absl::Status Decode(absl::Span<const RansRun> runs, absl::Span<const uint8_t> bytes,
                    absl::Span<uint8_t> symbols) {
  const size_t state_bytes = kLanes == 1 ? OnlyStateBytes(bytes.size()) : kLanes * kState;
  if (bytes.size() < state_bytes || (bytes.size() - state_bytes) % kWord != 0) {
    return absl::DataLossError(absl::StrFormat("coded symbols are %d bytes, want %d and whole words behind",
                                               bytes.size(), state_bytes));
  }
  States<kLanes> states = {};
  std::copy_n(bytes.data(), state_bytes, reinterpret_cast<uint8_t*>(states.data()));
  const uint8_t* words = bytes.data() + state_bytes;
  const uint8_t* const end = bytes.data() + bytes.size();
  size_t at = 0;
  for (const RansRun& run : runs) {
    const RansTable::Slot* const slots = run.table->slots();
    const uint8_t* const slot_symbols = run.table->slot_symbols();
    const size_t until = at + run.symbols;
    const auto one = [&] {
      uint32_t& x = states[at % kLanes];
      symbols[at++] = Take(slots, slot_symbols, x);
      if (words != end) Refill(x, words);
    };
    while (at < until && at % kLanes != 0) one();
    States<kLanes> lanes = states;
    const uint8_t* from = words;
    // No group takes more words than it has lanes.
    for (; until - at >= kLanes && static_cast<size_t>(end - from) >= kLanes * kWord; at += kLanes) {
      uint8_t* const to = symbols.data() + at;
      from = [&]<size_t... kI>(const uint8_t* next, std::index_sequence<kI...>) {
        ((to[kI] = Take(slots, slot_symbols, lanes[kI]), Refill(lanes[kI], next)), ...);
        return next;
      }
      (from, std::make_index_sequence<kLanes>());
    }
    words = from;
    states = lanes;
    while (at < until) one();
  }
  const bool back =
      std::all_of(states.begin(), states.end(), [](uint32_t x) { return x == FirstState(kLanes); });
  if (back && words == end) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%d coded bytes are not those of %d symbols: %d are left, want none, and states end %s", bytes.size(),
      symbols.size(), end - words, back ? "as they begin" : "otherwise than they begin"));
}

size_t SymbolsOf(absl::Span<const RansRun> runs) {
  size_t symbols = 0;
  for (const RansRun& run : runs) symbols += run.symbols;
  return symbols;
}

}  // namespace

int RansLanes(size_t symbols, size_t symbols_per_lane) {
  const size_t lanes = std::clamp<size_t>(symbols / symbols_per_lane, 1, kMaxRansLanes);
  return static_cast<int>(std::bit_floor(lanes));
}

size_t RansEncode(absl::Span<const RansRun> runs, absl::Span<const uint8_t> symbols, int lanes,
                  absl::Span<uint8_t> out) {
  ALUDEL_CHECK(SymbolsOf(runs) == symbols.size() && out.size() >= MaxRansBytes(symbols.size(), lanes));
  switch (lanes) {
    case 1:
      return Encode<1>(runs, symbols, out);
    case 2:
      return Encode<2>(runs, symbols, out);
    case 4:
      return Encode<4>(runs, symbols, out);
    case 8:
      return Encode<8>(runs, symbols, out);
    case 16:
      return Encode<16>(runs, symbols, out);
    default:
      ALUDEL_CHECK(lanes == kMaxRansLanes);
      return Encode<kMaxRansLanes>(runs, symbols, out);
  }
}

absl::Status RansDecode(absl::Span<const RansRun> runs, absl::Span<const uint8_t> bytes, int lanes,
                        absl::Span<uint8_t> symbols) {
  ALUDEL_CHECK(SymbolsOf(runs) == symbols.size());
  switch (lanes) {
    case 1:
      return Decode<1>(runs, bytes, symbols);
    case 2:
      return Decode<2>(runs, bytes, symbols);
    case 4:
      return Decode<4>(runs, bytes, symbols);
    case 8:
      return Decode<8>(runs, bytes, symbols);
    case 16:
      return Decode<16>(runs, bytes, symbols);
    default:
      ALUDEL_CHECK(lanes == kMaxRansLanes);
      return Decode<kMaxRansLanes>(runs, bytes, symbols);
  }
}

}  // namespace aludel
