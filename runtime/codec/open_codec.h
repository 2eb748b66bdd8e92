#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/codec.h"

namespace aludel {

// Which side of the wire a codec is opened for.
enum class CodecSide : uint8_t { kProducer, kConsumer };

// `format` is "raw", a baseline ("int8", "int4", "recompute", "recompute-FIRST-LAST") or a format of the
// artifact directory `artifact` (may be empty where no format needs one). Loads this side's half only, and
// checks it against `model` (hashes and shapes): FailedPrecondition names both. `model` must outlive
// the codec.
absl::StatusOr<std::unique_ptr<KvCodec>> OpenCodec(absl::string_view format, const std::string& artifact,
                                                   CodecSide side, const Transformer& model);

// Wire formats that a server offers with this artifact directory if not told otherwise, "raw" first.
// With a consumer's model hash, only those that it has a decoder for.
absl::StatusOr<std::vector<std::string>> ListFormats(const std::string& artifact,
                                                     absl::string_view consumer_hash = "");

// Formats that need no artifact and lose something all the same. OpenCodec knows them; evaluation shows them,
// servers offer them only where they are named.
std::vector<std::string> ListBaselines();

// Controls of this artifact ("control-p0", ...): what the consumer's own shallow layers predict of the rest
// at zero bytes. OpenCodec opens them for the consumer side only; they ship nothing.
absl::StatusOr<std::vector<std::string>> ListControls(const std::string& artifact,
                                                      absl::string_view consumer_hash = "");

}  // namespace aludel
