#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace aludel {

// The bytes of bf16 numbers without loss (FORMAT.md, kind lossless): exponents, which follow a narrow distribution,
// entropy-coded by a table of their own, and signs with mantissas, which look random, as they are. Stateless.

// Bound on what CodeSplit writes: what it writes where coding exponents would not pay.
constexpr size_t MaxSplitBytes(size_t numbers) { return 1 + 2 * numbers; }

// Writes `numbers` to the front of `out` (at least MaxSplitBytes) and returns the bytes that it took.
size_t CodeSplit(absl::Span<const Bf16> numbers, absl::Span<uint8_t> out);

// Reads exactly `numbers.size()` numbers from the front of `bytes`, which it moves behind them. DataLoss where they are
// not there; numbers are then unspecified.
absl::Status DecodeSplit(absl::Span<const uint8_t>* bytes, absl::Span<Bf16> numbers);

}  // namespace aludel
