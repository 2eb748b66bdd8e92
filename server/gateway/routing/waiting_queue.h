#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace aludel {

// The requests of one model that wait for a place at its decode servers: which is next, and which are refused. Bounded in
// requests and in prompt tokens. Fair between tenants: each gets time at places in proportion to its weight as long as it has
// something waiting; within a tenant by priority, then by arrival. A request is refused where what was
// measured says that its answer would come too late: the places given while others waited predict its wait, the answers so
// far how long it takes then. Without such figures a request waits until its deadline. Pure: times of MonotonicNow() are
// passed in. Not thread-safe.
//
// Fairness is start-time fair queueing (Goyal, Vin, Cheng 1996) over seconds at places: the next place is the tenant's that
// will have had the least of them for its weight when what it runs now has taken its mean time. A tenant that had nothing
// waiting begins where the others are, and while nothing waits at all nothing is counted: what was used or not used in a quiet
// hour is no claim on a busy one.
class WaitingQueue {
 public:
  struct Options {
    int max_waiting = 0;  // requests; 0: nothing waits
    int64_t max_waiting_tokens = 0;
  };
  struct Entry {
    uint64_t id = 0;  // in order of arrival
    std::string tenant;
    int weight = 1;       // of the tenant, from now on: at least 1
    int64_t tokens = 0;   // of the prompt
    int places = 1;       // that it takes: its choices
    int priority = 0;     // lower goes first
    absl::Time deadline;  // of the whole answer
  };
  struct Refusal {
    const char* reason;  // a label of metrics: "full", "tokens" or "deadline"
    std::string message;
    int retry_after_seconds = 1;  // when, as predicted, a request would not be refused
  };

  explicit WaitingQueue(const Options& options) : options_(options) {}

  // Whether a request that comes now would be refused. `tokens` 0: not known yet.
  std::optional<Refusal> Check(const std::string& tenant, int64_t tokens, absl::Time now, absl::Time deadline,
                               int priority = 0) const;
  void Push(Entry entry, absl::Time now);
  // The entry that gets the next place; null where none waits. Valid until the next Push or Remove.
  const Entry* Next(absl::Time now) const;
  // False where it does not wait.
  bool Remove(uint64_t id);
  // Removes those whose answer cannot come in time any more, and says why.
  std::vector<std::pair<uint64_t, Refusal>> RemoveHopeless(absl::Time now);

  // A request has got places: straight away, or (`waited`) out of this queue, from which it was removed before.
  void Started(const std::string& tenant, int weight, int places, absl::Time now, bool waited);
  // It had them for nothing: its servers have no room.
  void Returned(const std::string& tenant, int places, absl::Time now);
  // It has given them back; `served`: after so long, with a whole answer.
  void Ended(const std::string& tenant, int places, absl::Time now, std::optional<absl::Duration> served);

  int size() const { return static_cast<int>(index_.size()); }
  int64_t tokens() const { return tokens_; }
  int places_taken() const { return places_taken_; }
  int waiting_places() const;
  // Of a request of this tenant (its weight as last told, or 1) that comes now; nothing where no wait was measured.
  std::optional<absl::Duration> PredictWait(const std::string& tenant, int priority = 0) const;

 private:
  using Rank = std::pair<int, uint64_t>;  // priority and arrival
  struct Tenant {
    std::map<Rank, Entry> waiting;
    int waiting_places = 0;
    int weight = 1;
    int taken = 0;
    double used = 0;   // seconds at places for its weight, until `since`, and what it was given when it came
    absl::Time since;  // since when `taken`
    uint64_t last_turn = 0;  // 0: none yet
    bool idle() const { return taken == 0 && waiting.empty(); }
  };
  // A mean that follows; the first samples count alike.
  struct Mean {
    void Add(double sample);
    double value = 0;
    int samples = 0;
  };
  static constexpr double kLeastWeight = 0.05;
  // How many places were given in how much time, both forgotten alike: sequences that end in one step are one event.
  struct Pace {
    void Add(double more_seconds, int more_places);
    std::optional<double> seconds_a_place() const;
    double seconds = 0;
    double places = 0;
  };

  std::optional<Refusal> TooLate(absl::Duration wait, absl::Time now, absl::Time deadline) const;
  // What the tenant will have used, for its weight, when what it has now has taken its mean time.
  double Turn(const Tenant& tenant, absl::Time now) const;
  // A tenant with nothing waiting takes part again. `newest`: no request after it has told a weight.
  Tenant& Join(const std::string& name, int weight, bool newest, absl::Time now);
  void Drop(uint64_t id);
  static void Settle(Tenant* tenant, absl::Time now);
  // Idle tenants whose past no longer counts.
  void Forget();

  const Options options_;
  std::map<std::string, Tenant> tenants_;  // with something waiting or taken, or ahead of their share
  std::map<uint64_t, std::pair<std::string, Rank>> index_;
  int64_t tokens_ = 0;
  int places_taken_ = 0;
  uint64_t turns_ = 0;
  double reached_ = 0;  // the most that one had used when it got a place: one that comes begins there
  Pace pace_;           // of places given to entries while others wait
  Mean service_seconds_;
  std::optional<absl::Time> last_place_;  // while something has waited since
};

}  // namespace aludel
