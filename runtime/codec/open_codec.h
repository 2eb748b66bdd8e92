#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/codec.h"

namespace aludel {

// One side of a wire format. `format` is "raw", a baseline ("lossless", "int8", "int4", "recompute",
// "recompute-FIRST-LAST") or a format of the artifact directory `artifact` (may be empty where no format needs
// one). Loads this side only, and checks it against the model (hashes and shapes): FailedPrecondition names
// both. The model must outlive the factory.
absl::StatusOr<std::unique_ptr<EncoderFactory>> OpenEncoders(absl::string_view format,
                                                             const std::string& artifact,
                                                             const Transformer& producer);
// Whether decoders fail prompts that are unlike what their codec was fitted to (AludelShape::range), as servers want. What
// measures codecs wants to see what these lose.
enum class RangeCheck : uint8_t { kOn, kOff };
// `adapter_hash`: for sequences of that adapter over the model (LoraWeights::hash()); "": for the model alone.
absl::StatusOr<std::unique_ptr<DecoderFactory>> OpenDecoders(absl::string_view format,
                                                             const std::string& artifact,
                                                             const Transformer& consumer,
                                                             absl::string_view adapter_hash = "",
                                                             RangeCheck range_check = RangeCheck::kOn);

// Wire formats that a server offers with this artifact directory if not told otherwise, "raw" first; none of packing video.
// With a consumer's model hash, only those that it has a decoder for.
absl::StatusOr<std::vector<std::string>> ListFormats(const std::string& artifact,
                                                     absl::string_view consumer_hash = "");

// The artifact's formats of packing video: they are slower than rans on every CPU, and need libraries that not every machine has.
// OpenEncoders and OpenDecoders know such names; servers, evaluation and benchmarks take them only where they are named.
absl::StatusOr<std::vector<std::string>> ListVideoFormats(const std::string& artifact,
                                                          absl::string_view consumer_hash = "");

// Cuts of the artifact's embedded formats: "NAME@N" for each N below their planes, the largest first. Reads the encoders.
// OpenEncoders and OpenDecoders know such names; servers offer them only where they are named. They know "NAME@N+", too: its
// encoder makes whole frames, and who sends them splits them (CodecSpec::base_planes, SplitPlanes).
absl::StatusOr<std::vector<std::string>> ListCuts(const std::string& artifact,
                                                  absl::string_view consumer_hash = "");

// Formats beside "raw" that need no artifact. Both sides know them; evaluation shows them, servers offer them only
// where they are named: most lose something, and "lossless" costs the host's time, which a fast link does not repay.
std::vector<std::string> ListBaselines();

// Controls of this artifact ("control-p0", ...): what the consumer's own shallow layers predict of the rest
// at zero bytes. OpenDecoders knows them; they ship nothing and have no encoder.
absl::StatusOr<std::vector<std::string>> ListControls(const std::string& artifact,
                                                      absl::string_view consumer_hash = "");

}  // namespace aludel
