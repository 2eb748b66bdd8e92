#pragma once

#include <optional>

#include "absl/status/status.h"
#include "runtime/codec/codec.h"

namespace aludel {

// The coverage of a frame that holds one layer of one chunk.
FrameCoverage SliceCoverage(const LayerSlice& slice);

// The part of a slice in tokens [begin, end); none where it lies outside.
std::optional<LayerSlice> ClipSlice(const LayerSlice& slice, int64_t begin, int64_t end);

// DataLoss unless a frame holds exactly one layer of a model of `layers`, plane 0, and tokens that the target
// hands over and has blocks for. Every decoder asks this before it touches a page.
absl::Status CheckLayerFrame(const FrameCoverage& coverage, int layers, const KvTarget& target);

}  // namespace aludel
