#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// The codec can only decode, and its decoder does all its work in Begin.
absl::StatusOr<std::unique_ptr<KvCodec>> MakeControlCodec(std::string name, const ControlWeights& weights,
                                                          const Transformer& model);

}  // namespace aludel
