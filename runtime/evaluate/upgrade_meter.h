#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/pair_under_test.h"

namespace aludel {

// What a handoff in two parts loses, token by token: the first planes of every frame come first and the consumer begins over
// them, and what is left of the planes upgrades the cache of the prompt later, between two of its steps.

// A cut of an embedded format and the whole of it, both under test.
struct UpgradePair {
  const FormatUnderTest* base = nullptr;   // "NAME@N"
  const FormatUnderTest* whole = nullptr;  // "NAME"
  int base_planes = 0;                     // N
  int planes = 0;
};

// In the order of pair.formats(). NotFound where there is none.
absl::StatusOr<std::vector<UpgradePair>> FindUpgradePairs(const PairUnderTest& pair);

// Ends of the spans of `tokens` tokens that a curve has a mean of: 8, 16, 32 and so on.
std::vector<int64_t> UpgradeSpans(int64_t tokens);

// Over windows of text as CutWindows makes them: the first half of each is handed over, and the consumer reads the
// other half token by token. `after`: numbers of tokens that it has read when the upgrade comes, rising; at once and
// never stand beside them. `seed` of the bootstrap. InvalidArgument where an upgrade would come behind the last token.
absl::StatusOr<std::vector<UpgradeResult>> MeasureUpgrades(PairUnderTest& pair,
                                                           absl::Span<const std::vector<int32_t>> windows,
                                                           absl::Span<const int64_t> after, uint64_t seed,
                                                           const EvaluateProgress& progress);

}  // namespace aludel
