#include "server/decode/codes/frame_collector.h"

#include <algorithm>
#include <utility>

#include "server/store/feed/chunk_keeper.h"

namespace aludel {

void FrameCollector::Add(int attempt, const FrameHeader& header, absl::Span<const uint8_t> payload) {
  std::vector<Frame> dropped;  // freed without the lock
  absl::MutexLock lock(&mutex_);
  if (full_ || attempt != attempt_) return;
  const size_t held = room_->held.fetch_add(payload.size()) + payload.size();
  bytes_ += payload.size();
  if (held > room_->limit) {
    full_ = true;
    room_->held.fetch_sub(std::exchange(bytes_, 0));
    dropped.swap(frames_);
    return;
  }
  frames_.push_back({header.sequence, header.coverage, {payload.begin(), payload.end()}});
}

std::vector<FrameCollector::Frame> FrameCollector::Take(int next_attempt) {
  std::vector<Frame> frames;
  absl::MutexLock lock(&mutex_);
  room_->held.fetch_sub(std::exchange(bytes_, 0));
  frames.swap(frames_);
  attempt_ = next_attempt;
  full_ = false;
  return frames;
}

void FrameCollector::Restart(int attempt) { Take(attempt); }

void FrameCollector::Close() { Take(kNone); }

void FrameCollector::Keep(absl::Span<const int32_t> prompt) {
  std::vector<Frame> frames = Take(kNone);
  // Chunk by chunk, each as it was encoded: a prefill server sends stored chunks while it encodes others.
  const auto end_of = [](const Frame& frame) {
    return uint64_t{frame.coverage.token_begin} + frame.coverage.tokens;
  };
  std::sort(frames.begin(), frames.end(), [&end_of](const Frame& a, const Frame& b) {
    return std::pair(end_of(a), a.sequence) < std::pair(end_of(b), b.sequence);
  });
  ChunkKeeper keeper({.store = store_, .codec = codec_.get(), .prompt = prompt, .begin = begin_});
  for (const Frame& frame : frames) keeper.Add(frame.coverage, frame.payload);
}

}  // namespace aludel
