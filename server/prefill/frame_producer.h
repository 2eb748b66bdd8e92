#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/codec/codec.h"
#include "runtime/engine/engine.h"
#include "server/prefill/chunk_recorder.h"
#include "server/store/feed/prefix_feed.h"

namespace aludel {

// Has the frames of one prompt sent: a PrefixFeed sends what is stored, and while it reads and sends, the engine computes
// and encodes what is not.
//
//   tokens  0           sent         found                        end
//           [- stored, sent -)[- being read -)[- the engine's part --)
//
// What was found and cannot be read is computed after all. As long as the engine has not begun a frame, its part is
// withdrawn and begins again where the stored frames end; else the gap is a second part, after the first. So each token's
// frames are sent once, and at most one part is with the engine. Thread-safe. Owned by the feed and the engine while they
// have something of it.
class FrameProducer : public std::enable_shared_from_this<FrameProducer> {
 public:
  // Of the prompt tokens [0, end) are to be computed, and [begin, end) encoded.
  struct Part {
    int64_t begin = 0;
    int64_t end = 0;
  };
  struct Produced {
    StorePosition stored;         // what was sent from the store
    bool computed = false;        // some of it was
    SequenceTimes times;          // of all parts
    int64_t computed_tokens = 0;  // of the parts that were encoded, those that no cache of the engine had
    int64_t cached_tokens = 0;    // of the last part
    StorePosition end;            // of what is stored now, as far as is known; after success
  };
  struct Spec {
    PrefixFeed::Context feeding;
    PrefixFeed::Prompt prompt;     // but for on_found
    PrefixStore* store = nullptr;  // where what is computed is kept; null: nowhere
    std::shared_ptr<FrameSink> stored;
    PrefixFeed::HasRoom has_room;  // in `stored`
    std::shared_ptr<FrameSink> computed;
    // Begins a part: its frames go to the sink, and the listener hears of its end. Both live until then.
    std::function<absl::StatusOr<SequenceId>(const Part&, FrameSink*, std::shared_ptr<SequenceListener>)>
        begin;
    std::function<void(SequenceId, const absl::Status&)> cancel;
    std::function<void()> part_ended;  // any room that it kept is to be given back
    std::function<void()> nudge;       // there may be room for a part
    // Called once, when neither the feed nor the engine has anything of this any more. Its error is the first one.
    std::function<void(const absl::Status&, const Produced&)> done;
  };

  explicit FrameProducer(Spec spec) : spec_(std::move(spec)) {}

  void Start();
  // There may be room for a frame.
  void OnRoom();
  void Stop(const absl::Status& reason);

 private:
  // One part's way through the engine.
  class Listener;

  void OnFound(const PrefixFeed::Found& found);
  void OnFed(absl::StatusOr<PrefixFeed::Sent> sent);
  void OnPartDone(const Part& part, const absl::Status& status, const SequenceResult& result);
  // The part from `begin` to where the next one begins, for Submit. `waits`: what stands in front of it may not be stored yet.
  Part NewPart(const StorePosition& begin, bool waits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Submit(const Part& part, std::shared_ptr<ChunkRecorder> recorder);
  // Begins what is left, or ends.
  void GoOn();
  void End();

  Spec spec_;  // `done` until it is called

  absl::Mutex mutex_;
  std::shared_ptr<PrefixFeed> feed_ ABSL_GUARDED_BY(mutex_);  // until it is done
  bool fed_ ABSL_GUARDED_BY(mutex_) = false;                  // it is
  bool over_ ABSL_GUARDED_BY(mutex_) = false;                 // End was called
  absl::Status status_ ABSL_GUARDED_BY(mutex_);               // the first error
  std::shared_ptr<Flights::Flight> flight_ ABSL_GUARDED_BY(mutex_);
  StorePosition front_ ABSL_GUARDED_BY(mutex_);       // where what the feed sent ends, or a part behind it
  int64_t encoded_from_ ABSL_GUARDED_BY(mutex_) = 0;  // tokens from here on are of some part
  std::shared_ptr<ChunkRecorder> part_ ABSL_GUARDED_BY(mutex_);  // with the engine
  SequenceId sequence_ ABSL_GUARDED_BY(mutex_) = 0;              // its; 0: not known yet
  bool withdrawn_ ABSL_GUARDED_BY(mutex_) = false;               // the part
  std::shared_ptr<ChunkRecorder> rest_ ABSL_GUARDED_BY(mutex_);  // of the part that ends with the prompt
  Produced produced_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
