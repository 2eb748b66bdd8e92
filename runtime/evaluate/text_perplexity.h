#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/pair_under_test.h"

namespace aludel {

// -log p in nats of every scored token of a text.
struct TextNats {
  std::vector<double> oracle;
  std::vector<std::vector<double>> formats;  // [pair.formats()]
};

// Cuts the file into windows of `window_tokens`, of the consumer's context at most; at most `windows` of them. Errors name
// the file.
absl::StatusOr<std::vector<std::vector<int32_t>>> CutWindows(PairUnderTest& pair, const std::string& file,
                                                             int64_t windows, int64_t window_tokens);

// The tokens of a window's beginning that are handed over: what follows the next one is scored.
int64_t HandedOverOf(absl::Span<const int32_t> window);

// The first half of each window is handed over by every format, and the consumer scores the other half on that cache, and on
// its own as the oracle. `name` is for the progress.
absl::StatusOr<TextNats> ScoreText(PairUnderTest& pair, const std::string& name,
                                   absl::Span<const std::vector<int32_t>> windows,
                                   const EvaluateProgress& progress);

}  // namespace aludel
