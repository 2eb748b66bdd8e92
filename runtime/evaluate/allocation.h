#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/evaluate/in_process_handoff.h"

namespace aludel {

// Bytes that a handoff spends on layers [first_layer, first_layer + layers) for one kind of thing: "K",
// "V", "H" (a code of the attention input), "x" (the residual stream), "code" (of K and V jointly)
// or "header".
struct Share {
  int first_layer = 0;
  int layers = 1;
  std::string part;
  double bytes = 0;
};

// Adds `share` to the entry of the same layers and part, or appends it.
void AddShare(const Share& share, std::vector<Share>* shares);

// Where the bytes of these frames went, headers included. `format` is the artifact's entry, null for formats
// without one.
std::vector<Share> SplitBytes(absl::Span<const WireFrame> frames, const ArtifactFormat* format,
                              const ModelConfig& config);

}  // namespace aludel
