#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/pair_under_test.h"

namespace aludel {

// -log p in nats of every scored token of a text.
struct TextNats {
  std::vector<double> oracle;
  std::vector<std::vector<double>> formats;  // [pair.formats()]
};

// Cuts the file into windows of `window_tokens`, at most `windows` of them. The first half of each is handed
// over by every format, and the consumer scores the other half on that cache, and on its own as the oracle.
// Errors name the file.
absl::StatusOr<TextNats> ScoreText(PairUnderTest& pair, const std::string& file, int64_t windows,
                                   int64_t window_tokens, const EvaluateProgress& progress);

}  // namespace aludel
