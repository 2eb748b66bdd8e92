#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/gateway/routing/policy/choose_replica.h"
#include "server/gateway/routing/policy/key_depth.h"
#include "server/gateway/routing/policy/known_prefixes.h"
#include "server/gateway/routing/policy/prefix_index.h"
#include "server/gateway/routing/policy/prefix_keys.h"
#include "server/gateway/routing/policy/replica_load.h"
#include "server/rpc/outlier.h"
#include "server/rpc/slow_start.h"

namespace aludel {

// What a replica says of itself.
struct ReplicaReport {
  double waiting_seconds = 0;           // of prefill that is queued or begun
  int running = 0;                      // requests, of all gateways
  int places = 0;                       // for requests; 0: not known
  std::optional<int64_t> cache_tokens;  // that its prefix cache may hold; 0: it has none. Nothing: not known
  double age_seconds = 0;               // since it started
  PrefillCosts costs;
};

// What one gateway believes of the replicas of one model, and whom it chooses by that. The gateway and the simulator run
// this class. Knows no clock: `now` and the like are seconds of one that never goes back. Not thread-safe.
//
// A request is sent in three steps: Choose, Sent, Ended. A replica whose queue is longer than WaitLimit sends it back, and it
// begins anew after TurnedAway. Other gateways' requests show in reports, and what they left in
// caches in Learn; so gateways need nothing of each other.
class Fleet {
 public:
  struct Options {
    RoutingPolicy policy = RoutingPolicy::kPrefix;
    double objective_seconds = 2;
    // A replica that started less than this ago gets the smaller a share of keys the younger it is, and no more than
    // kLeastWeight in its first moment.
    double slow_start_seconds = kSlowStartSeconds;
    // What a replica is believed to hold that does not say.
    int64_t cache_tokens = 1 << 20;
    bool cache_events = true;  // what replicas say that they have cached counts, and is asked for
  };
  using Standing = ReplicaView::Standing;

  explicit Fleet(const Options& options) : options_(options) {}

  // Its slot, which is its own until Remove.
  size_t Add(const std::string& name);
  void Remove(size_t slot);
  // Another process is there now, which is new: nothing that was believed holds, but for what it has said of its cache.
  void Forget(size_t slot, double now);

  // `as_of`: when it was made, or a moment before.
  void Report(size_t slot, const ReplicaReport& report, double as_of);
  // As Report, of parts of it. What is older than the last report says nothing.
  void SetPlaces(size_t slot, int places) { replicas_[slot].report.places = places; }
  void SetCosts(size_t slot, const PrefillCosts& costs) { replicas_[slot].report.costs = costs; }
  void Measured(size_t slot, double waiting_seconds, double as_of) {
    if (as_of >= replicas_[slot].reported_at) replicas_[slot].load.Report(waiting_seconds, as_of);
  }
  // Another gateway's request with these beginnings went there.
  void Learn(size_t slot, const PrefixKeys& keys);

  // `standing` of each slot; a replica where requests fail, or that is full, is a spare at best. `again`: the request was
  // asked about before. The decision's index is a slot.
  RoutingDecision Choose(const PrefixKeys& keys, absl::FunctionRef<Standing(size_t slot)> standing,
                         double now, bool again = false);
  // What Choose made its last decision of, by slot.
  absl::Span<const ReplicaView> views() const { return views_; }
  // Index into the keys of that decision: of the one routed by.
  size_t depth() const { return depth_; }

  // Of that decision's request, which shall have its first token within `max_ttft` seconds: by how much it is predicted to be
  // late wherever it may go; nothing where it is in time. A prompt that takes longer by itself is late where it waits for more
  // than half of that: it can have its answer when there is no queue. Nor is it in time after `time_left` seconds, its deadline;
  // where `max_ttft` is infinite, only if it would be without the queue.
  std::optional<double> LateBy(double max_ttft, int64_t prompt_tokens,
                               double time_left = std::numeric_limits<double>::infinity()) const;

  // The request goes there. Its prefill is expected to take `prefill_seconds` (ExpectedPrefill); it takes `places`, one for
  // each of its choices.
  void Sent(size_t slot, const PrefixKeys& keys, double prefill_seconds, double now, int places = 1);
  // Of the last Choose's request at a slot.
  double ExpectedPrefill(size_t slot, int64_t prompt_tokens) const;
  // With a longer queue the replica would not have been chosen. Before Sent.
  double WaitLimit(size_t slot, double now) const {
    return wait_seconds(slot, now) + kSpillMargin * options_.objective_seconds;
  }
  // It did not take the request, of which it had `cached_tokens` when it was chosen; after Ended.
  void TurnedAway(size_t slot, const PrefixKeys& keys, int64_t cached_tokens) {
    index_.Erase(slot, keys, cached_tokens);
    replicas_[slot].under_way.Drop(keys);
  }
  enum class Outcome { kServed, kRefused, kFailed };
  // True where it is left out from now on because requests fail there.
  bool Ended(size_t slot, Outcome outcome, double now, int places = 1);
  // Its prefixes are cached no more.
  void ForgetCache(size_t slot);

  // What its cache holds, and what has changed there since, as it says: that counts in place of what it was sent, for prompts
  // whose keys have blocks, until CacheUnknown. False: it is too much to know.
  bool CacheKnown(size_t slot, absl::Span<const KeyChange> keys, int64_t key_tokens) {
    return known_.Replace(slot, keys, key_tokens);
  }
  bool CacheChanged(size_t slot, absl::Span<const KeyChange> changes) {
    if (known_.Apply(slot, changes)) return true;
    known_.Forget(slot);
    return false;
  }
  void CacheUnknown(size_t slot) { known_.Forget(slot); }
  // For those three in steps.
  KnownPrefixes& known_caches() { return known_; }
  bool knows_cache(size_t slot) const { return known_.knows(slot); }
  // Of the last Choose's prompt, that a slot is believed to have: to the token where its cache is known.
  int64_t CachedTokens(size_t slot, const PrefixKeys& keys) const;

  double wait_seconds(size_t slot, double now) const { return replicas_[slot].load.At(now); }
  int pending(size_t slot) const { return replicas_[slot].pending(); }
  int places(size_t slot) const { return replicas_[slot].report.places; }  // 0: not known
  const PrefillCosts& costs(size_t slot) const { return replicas_[slot].report.costs; }
  // Seconds since its last report was made, or since it started anew; 1e300 before the first.
  double report_age(size_t slot, double now) const { return now - replicas_[slot].reported_at; }
  size_t index_keys() const { return index_.keys(); }

 private:
  struct Replica {
    bool used = false;
    uint64_t id = 0;
    ReplicaReport report;
    double reported_at = -1e300;
    ReplicaLoad load;
    Outlier outlier;
    PromptsUnderWay under_way;
    int sent = 0;    // by this gateway, that have not ended
    int others = 0;  // of other gateways, by the last report
    int pending() const { return sent + others; }
  };

  // How much of the replicas' caches is believed in, at most: with a thousand replicas less of each.
  void BoundIndex(size_t slot);
  double WeightOf(const Replica& replica, double now) const;
  // Scores tell of prefill: a server that decodes for many more requests than its share shall not get the next.
  void SpareCrowded(double now);
  void MakeViews(const PrefixKeys& keys, absl::FunctionRef<Standing(size_t slot)> standing, double now);

  const Options options_;
  std::vector<Replica> replicas_;  // by slot
  PrefixIndex index_;
  KnownPrefixes known_;
  KeyDepth key_depth_;
  uint64_t turn_ = 0;
  std::vector<ReplicaView> views_;
  std::vector<int64_t> cached_, sent_;  // of MakeViews, kept for their memory
  size_t depth_ = 0;
};

}  // namespace aludel
