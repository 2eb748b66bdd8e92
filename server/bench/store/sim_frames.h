#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/store/chunk_key.h"
#include "server/store/stored_frames.h"

namespace aludel {

// Frames of an embedded code that is known by its bytes a token alone: planes that can be cut (FORMAT.md, kind aludel), of
// zeros. Of one length and one number of planes there is one object at a time, whatever the number of chunks. Not thread-safe.
class SimFrames {
 public:
  // Bytes a token of the whole code, and of its cuts, each of a plane less than the one before: 1 to kMaxPlanes.
  explicit SimFrames(std::vector<double> bytes_per_token) : bytes_(std::move(bytes_per_token)) {}

  // As a chunk in memory says it, see Serves.
  uint8_t PlanesOf(size_t format) const {
    return static_cast<uint8_t>(format == 0 ? 0 : bytes_.size() - format);
  }
  // Of a chunk of so many tokens: one frame.
  StoredFrames Of(int64_t tokens, uint8_t planes);
  size_t PayloadBytes(int64_t tokens, uint8_t planes);

 private:
  struct Made {
    std::weak_ptr<const std::vector<StoredFrame>> frames;
    size_t payload_bytes = 0;  // 0: never made
  };
  Made& MadeOf(int64_t tokens, uint8_t planes) { return made_[tokens * (kMaxPlanes + 1) + planes]; }
  std::vector<uint8_t> Payload(int64_t tokens, size_t format) const;

  const std::vector<double> bytes_;
  std::unordered_map<int64_t, Made> made_;
};

}  // namespace aludel
