#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// What an answer's tokens depend on beside its request, as OpenAI's clients know it: "fp_" and a digest of `numerics`
// (Router::Numerics). Under the same seed, answers of equal fingerprints are equal where batches do not matter
// (API.md, "Sampling").
std::string SystemFingerprint(absl::string_view numerics);

}  // namespace aludel
