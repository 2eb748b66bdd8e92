#pragma once

#include <cstdint>

#include "server/store/stored_frames.h"

namespace aludel {

// The same frames with the first so many planes of an embedded code (TruncatePlanes), as an encoder of "NAME@N" makes
// them; `frames` themselves where all are wanted (0). Null where a payload is no whole planes.
StoredFrames CutFrames(const StoredFrames& frames, uint8_t planes);

// What the payloads would take then. 0 where one is no whole planes.
size_t CutBytes(const std::vector<StoredFrame>& frames, uint8_t planes);

}  // namespace aludel
