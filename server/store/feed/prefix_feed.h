#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/process/timer.h"
#include "server/store/flights.h"
#include "server/store/prefix_store.h"

namespace aludel {

// Sends what the prefix store has of one prompt, frame by frame as there is room, reads ahead what is on disk or at the
// remote, and waits where another run is encoding more of it. What no run here has or encodes is looked for at the
// remote, once, and one that does not answer is waited for no longer than computing what it may have would take, and never
// longer than PrefixStore::remote_wait. It looks up all of the
// prompt before the last of what it found is read and sent, and says what is left to compute as soon as it knows; of what
// then cannot be read it says so at the end. Never waits on a thread: it goes on when Resume is called, on the timer's
// thread, since copying frames takes long. Thread-safe. The sink's calls come from one thread at a time, all of them
// before `done`.
class PrefixFeed : public std::enable_shared_from_this<PrefixFeed> {
 public:
  struct Context {
    PrefixStore* store = nullptr;
    Flights* flights = nullptr;
    Timer* timer = nullptr;
  };
  // Where what is stored of the prompt ends.
  struct Found {
    StorePosition end;
    bool in_memory = true;  // all of it, or it was sent: the rest has to be read
    // Of what follows, for the caller to encode; null where nothing is stored.
    std::shared_ptr<Flights::Flight> flight;
  };
  struct Prompt {
    const CodecSpec* codec = nullptr;
    std::string salt;
    absl::Span<const int32_t> tokens;
    absl::Duration max_age = absl::InfiniteDuration();
    absl::Duration patience;       // for another run's encoding, in all
    double tokens_per_second = 0;  // of computing, which a slow disk is measured by; 0: not known
    // Called before a wait for another run, with how many tokens of the prompt that one will not store.
    std::function<void(int64_t tokens)> on_wait = [](int64_t) {};
    // What is left to compute will be stored. False: no other run waits for it, nor it for others.
    bool stores = true;
    // Called once, before `done` and by the same thread, where something of the prompt is not found. What is at the remote
    // counts once the first chunk begins to come: behind a remote that hangs nothing is begun.
    std::function<void(Found)> on_found = [](const Found&) {};
  };
  struct Sent {
    StorePosition end;  // of what was sent; before Found::end where some of it could not be read
    // As Found's; null where the whole prompt was sent, too.
    std::shared_ptr<Flights::Flight> flight;
  };
  // Whether there is room for a frame with so large a payload.
  using HasRoom = std::function<bool(size_t payload_bytes)>;

  // The context and the prompt's tokens and codec must live until `done`.
  PrefixFeed(const Context& context, Prompt prompt) : context_(context), prompt_(std::move(prompt)) {}

  // `done` runs once, perhaps inside the call. Its error is the sink's, or the one that Stop was given.
  void Start(std::shared_ptr<FrameSink> sink, HasRoom has_room,
             std::function<void(absl::StatusOr<Sent>)> done);
  // There may be room now.
  void Resume();
  void Stop(const absl::Status& reason);

 private:
  // A chunk that was found, and its way from the disk or the remote.
  struct Item {
    explicit Item(StoredChunk found) : chunk(std::move(found)), frames(chunk.frames) {}
    StoredChunk chunk;
    bool from_memory() const { return chunk.frames != nullptr; }
    bool asked = false;   // to be read
    bool begun = false;   // the remote sends it; with mutex_
    bool read = false;    // with mutex_
    StoredFrames frames;  // null: not read, or it could not be; with mutex_
  };

  void Run();
  // True: all is sent that there is. False: Resume will be called.
  absl::StatusOr<bool> Go();
  // Finds what there is of the prompt. False: there may be more, and LookAgain will be called.
  bool Look();
  // As Resume, where there may be more in the store.
  void LookAgain();
  // Calls on_found, once it may be.
  void Announce();
  // False: Resume will be called. Where a chunk cannot be read it gives up: then there is another look.
  absl::StatusOr<bool> SendFound();
  void ReadAhead();
  // The frames of the first chunk, in as many planes as are wanted or more; null: not yet. From a chunk on that cannot be
  // read, all of them are dropped.
  StoredFrames FirstFrames();
  // How long the first chunk may still be waited for, from now on.
  absl::Duration ReadLimit() const;
  void Add(std::vector<StoredChunk> chunks);
  // What it has goes into chunks_. False: it is asked, and LookAgain will be called.
  bool AskRemote();
  // What computing the rest of the prompt takes; InfiniteDuration: that is not known.
  absl::Duration ComputingFrom(int64_t tokens) const;
  bool AskedRemote() const { return remote_until_ == absl::InfinitePast(); }
  // Sets flight_. False: another run's chunks are worth waiting for.
  bool Join();

  const Context context_;
  const Prompt prompt_;

  // With Run, one call at a time.
  std::shared_ptr<FrameSink> sink_;
  HasRoom has_room_;
  ChunkKey root_ = {};
  StorePosition found_;  // the end of `chunks_`
  StorePosition sent_;
  std::deque<std::shared_ptr<Item>> chunks_;             // found and not sent; bounded by the prompt
  size_t frame_ = 0;                                     // of the first of them
  PrefixStore::Found counts_;                            // of what was sent
  bool gave_up_ = false;                                 // on what the store has of the rest
  absl::Time read_wait_since_ = absl::InfiniteFuture();  // while the first chunk is not read
  absl::Time read_wait_until_ = absl::InfiniteFuture();
  absl::Duration read_waited_;  // before that, in all
  bool joined_ = false;         // what the store lacks is this run's to compute
  bool looked_ = false;         // and found all that there is
  bool look_waits_ = false;     // for LookAgain
  bool announced_ = false;
  std::shared_ptr<Flights::Flight> flight_;
  Flights::Known known_;
  absl::Time waits_until_ = absl::InfiniteFuture();  // for others, from the first wait on
  // For the remote's answer; InfiniteFuture: it was not asked, InfinitePast: nothing more is expected of it.
  absl::Time remote_until_ = absl::InfiniteFuture();
  absl::Time remote_since_;  // when it was asked
  absl::Duration remote_patience_;
  absl::Duration remote_waited_;  // for its answer

  absl::Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool resumed_ ABSL_GUARDED_BY(mutex_) = false;     // while running
  bool look_again_ ABSL_GUARDED_BY(mutex_) = false;  // LookAgain was called
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<StoredChunk>> at_remote_ ABSL_GUARDED_BY(mutex_);  // its answer
  // Null once called. What it holds keeps this alive until then.
  std::function<void(absl::StatusOr<Sent>)> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
