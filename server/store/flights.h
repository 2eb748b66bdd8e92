#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/store/chunk_key.h"

namespace aludel {

// Which prompts are being encoded for the store now, so that parallel requests of one new prefix encode it once: the
// first has a flight, the others wait for its chunks. Thread-safe. Callbacks run outside its lock, on the thread that
// advances or ends a flight, and must be short.
class Flights {
  struct State;

 public:
  // One run's encoding, while it lives.
  class Flight {
   public:
    Flight(Flights* flights, std::shared_ptr<State> state) : flights_(flights), state_(std::move(state)) {}
    ~Flight() { flights_->End(state_); }
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;
    // The store has the prompt's chunks up to here.
    void Advance(int64_t tokens) { flights_->Advance(*state_, tokens); }

   private:
    Flights* const flights_;
    const std::shared_ptr<State> state_;
  };

  // A step of the engine encodes at most `step_tokens`: a prompt that shares less than that with a flight's gains
  // nothing from it.
  explicit Flights(int64_t step_tokens) : step_tokens_(step_tokens) {}

  // What a caller knows of flights, from one call of Join to the next.
  struct Known {
    int64_t end = 0;     // the furthest that one was, which the caller could not find: it has looked since
    int64_t shared = 0;  // of the prompt, with the flight that is waited for
  };

  // A flight for what follows the first `have` tokens of a prompt; or null where another flight will store more of it.
  // Then `further` is called once, when that one has got further or ended. Look the prompt up again either way: what
  // ended a moment ago is found in the store. A flight that is further than `have`, and was when the prompt was last
  // looked up, has chunks that this prompt cannot use (too old for it, or gone), and is not waited for.
  std::unique_ptr<Flight> Join(const ChunkKey& root, absl::Span<const int32_t> prompt, int64_t have,
                               std::function<void()> further, Known* known);
  // As Join, without regard for other flights.
  std::unique_ptr<Flight> Begin(const ChunkKey& root, absl::Span<const int32_t> prompt, int64_t have);

 private:
  struct State {
    ChunkKey root;
    std::vector<int32_t> prompt;
    int64_t end = 0;  // the store has tokens [0, end)
    std::vector<std::function<void()>> waiting;
    std::list<std::shared_ptr<State>>::iterator place;
  };

  std::unique_ptr<Flight> Add(const ChunkKey& root, absl::Span<const int32_t> prompt, int64_t have)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Advance(State& state, int64_t tokens);
  void End(const std::shared_ptr<State>& state);

  const int64_t step_tokens_;
  absl::Mutex mutex_;
  std::list<std::shared_ptr<State>> flying_
      ABSL_GUARDED_BY(mutex_);  // and their fields; one for each run at most
};

}  // namespace aludel
