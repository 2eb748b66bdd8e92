#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/codec/codec.h"

namespace aludel {

// What both sides of an scd format of `layers` layers agree on. `max_rank`: bf16 values of a token's largest code.
CodecSpec ScdSpec(std::string format, std::string artifact_hash, size_t layers, int64_t max_rank);

}  // namespace aludel
