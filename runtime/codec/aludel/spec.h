#pragma once

#include <string>
#include <vector>

#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/codec.h"

namespace aludel {

// What both sides of an aludel format agree on. `grids`: one for each group of `shape`; `layers`: of the model; `base_planes`:
// the spec's.
CodecSpec AludelSpec(std::string format, std::string artifact_hash, const AludelShape& shape,
                     const std::vector<LatentGrid>& grids, int layers, int base_planes = 0);

}  // namespace aludel
