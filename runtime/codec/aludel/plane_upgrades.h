#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/frame.h"

namespace aludel {

// Frames of embedded codes in two parts (FORMAT.md, kind aludel): the base, their first planes, which decodes alone, and
// the upgrade, the planes that follow. Both together are the payload byte by byte, so that nothing is sent twice.

// Views of the payload that was split.
struct PlaneSplit {
  absl::Span<const uint8_t> base;
  absl::Span<const uint8_t> upgrade;
};

// `base_planes`: at least 1. DataLoss where the payload is no whole planes, or has no more than these.
absl::StatusOr<PlaneSplit> SplitPlanes(absl::Span<const uint8_t> payload, int base_planes);

// The consumer's half of a handoff in two parts: keeps the bytes of base frames until their upgrades come. What it joins is
// for a decoder of whole frames, which writes the pages of the frame's layers and tokens again, and no others. Frames come
// with their headers and checksums verified. One per handoff; not thread-safe. Holds as many bytes as the frames that wait.
class PlaneUpgrades {
 public:
  // Of frames of `planes` planes, the first `base_planes` of them their base: from 1 to planes - 1.
  PlaneUpgrades(int base_planes, int planes);

  // DataLoss unless the frame is a base, whole; AlreadyExists where one begins at its layer and token.
  absl::Status AddBase(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);
  // The payload of the whole frame that this upgrade completes; its base is forgotten. An upgrade has the layers and tokens
  // of its base, and its `plane` is the first that it holds. DataLoss where it has others, or is not all that is
  // missing; AlreadyExists the second time. Nothing has changed after an error.
  absl::StatusOr<std::vector<uint8_t>> Join(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);

  // Base frames whose upgrade has not come.
  size_t waiting() const { return waiting_; }

 private:
  struct Base {
    FrameCoverage coverage;
    std::vector<uint8_t> payload;
    bool upgraded = false;
  };
  // By first token and first layer.
  using Place = std::pair<uint32_t, uint16_t>;

  const int base_planes_;
  const int planes_;
  std::map<Place, Base> bases_;
  size_t waiting_ = 0;
};

}  // namespace aludel
