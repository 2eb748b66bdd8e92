#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "server/gateway/routing/policy/fleet.h"
#include "server/gateway/routing/policy/prefix_index.h"

namespace aludel {

// What a simulated server's steps take: seconds.
struct SimCosts {
  double step = 0.008;         // each
  double per_token = 1.6e-4;   // of prefill
  double per_pair = 5e-10;     // of a token of prefill and one before it
  double per_sequence = 2e-4;  // that decodes
  int64_t chunk_tokens = 512;  // of prefill in a step
  int max_sequences = 64;
  int64_t cache_tokens = 2'000'000;
};

// A server that batches continuously: each step computes the next chunk of the prompts that wait, first come, first served,
// and a token of every sequence that decodes. A prompt's beginning that its cache has is not computed. Times are seconds of
// the simulation. Not thread-safe.
class SimReplica {
 public:
  struct Event {
    size_t request;
    bool first_token;  // else the last one
    int64_t cached_tokens;
  };
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit SimReplica(const SimCosts& costs);

  // `keys` must outlive its place here. `handed_over`: a prefill server has computed the prompt, and this share of the work
  // is left to do here, whatever the cache has.
  void Arrive(size_t request, const PrefixKeys& keys, int64_t output_tokens, double now,
              std::optional<double> handed_over = std::nullopt);
  // When the running step ends; kNever while it idles.
  double next() const { return step_end_; }
  // Ends that step and begins the next.
  void Step(std::vector<Event>* events);
  // Seconds until the first token of a request here of which nothing is computed yet, here or elsewhere; nothing for others.
  std::optional<double> Remaining(size_t request, double now) const;
  // Such a request is here no more.
  void Withdraw(size_t request);
  // All that is here is lost: the requests, and the cache.
  std::vector<size_t> Fail();

  // The truth, as a server would report it.
  ReplicaReport Report(double now, double age) const;
  // Tokens that a request with these keys would find here when its turn comes.
  int64_t Match(const PrefixKeys& keys) const { return promised_.Match(keys); }

  int running() const { return static_cast<int>(waiting_.size() + active_.size()); }
  double prefill_seconds() const { return prefill_seconds_; }  // spent on it so far

 private:
  struct Waiting {
    size_t request;
    const PrefixKeys* keys;
    int64_t output_tokens;
    int64_t cached;    // while it has not begun, as expected
    int64_t at;        // tokens computed or cached
    double share = 1;  // of each token's work
    bool handed_over = false;
    bool begun = false;
  };
  struct Active {
    uint64_t last_step;
    size_t request;
    bool operator>(const Active& other) const { return last_step > other.last_step; }
  };

  void Queue(const Waiting& job, int sign);
  // Of a token of prefill, with its part of a step's own time.
  double SecondsPerToken() const;
  double RestOfStep(double now) const { return step_end_ == kNever ? 0 : step_end_ - now; }
  void BeginStep(double now);

  SimCosts costs_;
  PrefixLru cache_;
  PrefixLru promised_;  // what it holds once all that waits is computed
  std::deque<Waiting> waiting_;
  std::priority_queue<Active, std::vector<Active>, std::greater<>> active_;
  double queued_tokens_ = 0;  // to be computed
  double queued_pairs_ = 0;
  size_t ending_ = 0;  // of waiting_, whose last chunk is in the running step
  uint64_t step_ = 0;
  double step_end_ = kNever;
  double prefill_seconds_ = 0;
  std::vector<uint64_t> scratch_;
};

}  // namespace aludel
