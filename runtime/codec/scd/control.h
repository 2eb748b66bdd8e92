#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// Of a control, which has no encoder. Its decoders do all their work in Begin.
absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeControlDecoders(std::string name,
                                                                    const ControlWeights& weights,
                                                                    const Transformer& model);

}  // namespace aludel
