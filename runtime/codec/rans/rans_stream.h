#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/codec/rans/rans_table.h"

namespace aludel {

// An interleaved rANS coder (Duda, arXiv 1311.2540): symbols of known tables in about their ideal bytes. Symbol i of a
// stream belongs to lane i % lanes; lanes are independent states that share one sequence of 16-bit words, so that a
// machine works on many at a time. Bytes in FORMAT.md. Stateless.

inline constexpr int kMaxRansLanes = 32;

// The next `symbols` of a stream are of this table.
struct RansRun {
  const RansTable* table = nullptr;
  size_t symbols = 0;
};

// Lanes of a stream: the largest power of two, at most kMaxRansLanes, that leaves each of them so many symbols; at
// least 1. A lane takes about 3 bytes beside its symbols'; where it is the only one, about 1.5.
int RansLanes(size_t symbols, size_t symbols_per_lane);

// Bound on a stream's bytes. A symbol makes a state larger by a factor of at most 4096 (1 + 1/8): below 12.2 bits.
constexpr size_t MaxRansBytes(size_t symbols, int lanes) {
  return symbols + symbols / 2 + symbols / 32 + 4 * static_cast<size_t>(lanes) + 2;
}

// The stream of `symbols` in `out` (at least MaxRansBytes); returns its bytes. Runs cover the symbols, and no symbol
// has frequency 0 in its run's table. `lanes`: a power of two, at most kMaxRansLanes.
size_t RansEncode(absl::Span<const RansRun> runs, absl::Span<const uint8_t> symbols, int lanes,
                  absl::Span<uint8_t> out);

// The inverse: as many symbols as `symbols` has room for, all of them covered by runs. DataLoss where `bytes` are not
// exactly a stream of so many; symbols are then unspecified. A single lane has no room to tell all such streams:
// what lies behind its end reads as likely symbols.
absl::Status RansDecode(absl::Span<const RansRun> runs, absl::Span<const uint8_t> bytes, int lanes,
                        absl::Span<uint8_t> symbols);

}  // namespace aludel
