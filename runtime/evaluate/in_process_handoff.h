#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"

namespace aludel {

// A whole handoff inside one process, for calibration, evaluation and tests: what the producer's encoder
// makes is kept as the bytes that would travel, and the consumer's decoder sees nothing but those bytes.

struct WireFrame {
  std::array<uint8_t, kFrameHeaderBytes> header;
  std::vector<uint8_t> payload;
};

// Completes headers and keeps frames, as a sender would ship them.
class FrameStore : public FrameSink {
 public:
  // `codec` gives kind and artifact, and must outlive the store.
  explicit FrameStore(const CodecSpec& codec) : codec_(codec) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  const std::vector<WireFrame>& frames() const { return frames_; }
  // Bytes handed to the transport: headers and payloads.
  size_t total_bytes() const { return total_bytes_; }

 private:
  const CodecSpec& codec_;
  std::deque<std::vector<uint8_t>> reserved_;  // oldest first
  std::vector<WireFrame> frames_;
  size_t total_bytes_ = 0;
};

// One encoder of a forward pass.
struct EncodeTask {
  const EncoderFactory* codec = nullptr;
  FrameSink* sink = nullptr;
  int64_t end = std::numeric_limits<int64_t>::max();  // tokens from here on are not encoded
  // The seconds spent inside it are added here. The model's stream is waited for before and behind, so that
  // they are its own also where the device works while the host goes on; but nothing overlaps then.
  double* seconds = nullptr;
};

// Runs the producer once over tokens [0, tokens) of `ids` and encodes every layer with every task, less the
// codec's recomputed head and what lies behind the task's end.
absl::Status EncodePrompt(Transformer& producer, BlockPool& pool, absl::Span<const int32_t> ids,
                          int64_t tokens, absl::Span<const EncodeTask> tasks);

// Checks and applies serialized frames as a consumer does: header, checksum, kind, artifact, coverage, then
// the decoder. DataLoss where they do not complete the handoff.
absl::Status ApplyFrames(absl::Span<const WireFrame> frames, const DecoderFactory& codec,
                         const KvTarget& target);

}  // namespace aludel
