#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/stream_marks.h"
#include "runtime/engine/engine_blocks.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/frame_opener.h"
#include "runtime/engine/pending_frame.h"
#include "runtime/engine/sequence.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Receives the frames of handoffs: they wait here, are checked, and fill their sequence's blocks. A frame
// that fails a check turns its sequence to local prefill. Owned by the engine thread; sequences and frames
// must not outlive it.
//
//   Begin --first parts, or whole frames--> received --second parts (CodecSpec::base_planes)--> upgraded
//     |  a frame fails: FallBack                          |  a frame fails, EndUpgrade: the cache stays as it is
//
// Second parts are written between steps to blocks that are the sequence's alone: nothing of it is in the prefix cache
// before all have come.
//
// On a device that works behind the host a frame's reconstruction is only enqueued, on the model's stream, in front of every
// step that reads its blocks and of whatever is written to them after a handoff was canceled. Its bytes stay until the
// device has read them. What cannot be enqueued fails its frame like a check; what fails later is the device's, lost for all.
//
// Payloads that take long to decode (PayloadOpener) pass through threads of their own on their way to the others.
class EngineIntake {
 public:
  // All must outlive the intake. `wake` is called by another thread where ApplySome has more to do.
  EngineIntake(Transformer* model, BlockPool* pool, EngineBlocks* blocks, EngineStats* counters,
               std::function<void()> wake)
      : model_(model),
        pool_(pool),
        blocks_(blocks),
        counters_(counters),
        marks_(dynamic_cast<StreamMarks*>(model->device())),
        opener_(OpenerThreads(), std::move(wake)) {}

  // Prepares the decoder of a sequence that has blocks for everything handed over. After an error the
  // sequence must fall back.
  absl::Status Begin(Sequence& sequence);
  void Push(PendingFrame frame, const SequenceMap& sequences);
  // But for what is being opened.
  bool empty() const { return frames_.empty() && second_parts_.empty(); }
  // Reconstructs a few frames, in order of arrival but second parts behind all others, which prompts wait for, or what takes a
  // small part of a step, of which the last one took `step_seconds`: handoffs may delay running decodes by these and no more.
  // Where no step waits for the device, which is as many frames behind as it may be, waits for some of them. Stops at a
  // sequence that must fall back, and returns why.
  std::optional<std::pair<SequenceId, absl::Status>> ApplySome(const SequenceMap& sequences,
                                                               double step_seconds);
  // Forgets an incomplete handoff: the prompt is computed here.
  void FallBack(Sequence& sequence, const absl::Status& reason);
  // Unless everything was received: forgets what was applied, and drops the waiting frames of this sequence.
  absl::Status Restart(Sequence& sequence);
  // Drops the waiting second parts of its frames, and what was kept for them.
  void EndUpgrade(Sequence& sequence);
  // Releases the frames that the device has read; no more than that is to be done once `settled`.
  void Settle();
  bool settled() const { return unread_.empty(); }
  // Releases every waiting frame unread, and the others once the device has read them. What is pushed after it waits for
  // another call.
  void ReleaseAll();

 private:
  void Enqueue(PendingFrame frame) {
    (frame.header.coverage.plane > 0 ? second_parts_ : frames_).push_back(std::move(frame));
  }
  absl::Status ApplyOne(Sequence& sequence, const PendingFrame& frame);
  absl::Status Apply(Sequence& sequence, Receiving& receiving, int plane, const PendingFrame& frame);
  // As ApplyOne for a second part; what fails ends the upgrade.
  void UpgradeOne(Sequence& sequence, const PendingFrame& frame);
  // Everything was received.
  void Received(Sequence& sequence);
  KvTarget Target(const Sequence& sequence, const Receiving& receiving) const;
  void DropFrames(SequenceId id);

  // One where the engine's own threads compute, several where they wait for a device.
  size_t OpenerThreads() const;

  // Frames that the device reads: those of one ApplySome.
  struct Unread {
    std::unique_ptr<StreamMarks::Mark> read;
    std::vector<std::function<void()>> releases;
  };
  static constexpr size_t kMostUnread = 2;

  Transformer* const model_;
  BlockPool* const pool_;
  EngineBlocks* const blocks_;
  EngineStats* const counters_;
  StreamMarks* const marks_;  // null: what is applied is read
  FrameOpener opener_;
  std::deque<PendingFrame> frames_, second_parts_;
  std::deque<Unread> unread_;  // oldest first, at most kMostUnread
};

}  // namespace aludel
