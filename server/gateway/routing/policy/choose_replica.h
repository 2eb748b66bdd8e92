#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/gateway/routing/policy/rendezvous.h"

namespace aludel {

enum class RoutingPolicy : uint8_t {
  kPrefix,        // where the prompt's beginning lives, by predicted TTFT
  kLeastPending,  // the fewest unfinished requests
  kRoundRobin,
};

// nullopt for another name.
std::optional<RoutingPolicy> ParseRoutingPolicy(absl::string_view name);

// Why a replica was chosen: a label of metrics.
enum class RoutingReason : uint8_t {
  kNone,          // there is no replica
  kFirst,         // the prompt's beginning lives there
  kSecond,        // would live there next, and costs less there
  kCached,        // has most of the prompt in its cache, and costs less than the two
  kSpill,         // costs least of all, and less than those by a margin unless it alone meets the objective
  kLeastPending,  // of the policy of that name
  kRoundRobin,
};
const char* Name(RoutingReason reason);

// Seconds to prefill a prompt of which a cache has the beginning.
struct PrefillCosts {
  double fixed = 0;
  double per_token = 1e-4;  // of those not cached
  double per_pair = 0;      // of a token and one before it: attention

  double Seconds(int64_t tokens, int64_t cached) const {
    const auto all = static_cast<double>(tokens), had = static_cast<double>(cached);
    return fixed + per_token * (all - had) + per_pair * (all * all - had * had);
  }
};

// What is believed of a replica when a request comes.
struct ReplicaView {
  enum class Standing : uint8_t {
    kReady,
    kSpare,  // slow, or full: only where none is ready
    kOut,    // gets nothing
  };
  uint64_t id = 0;  // RendezvousId
  Standing standing = Standing::kReady;
  double weight = 1;           // in (0, 1]: less for one that is new
  double wait_seconds = 0;     // before a request that comes now is computed
  int64_t cached_tokens = 0;   // of this request's prompt
  int pending = 0;             // requests
  bool keeps_prefixes = true;  // false: nothing lives there as long as others keep prefixes
  PrefillCosts costs;
};

// Seconds to the first token. Infinite where a figure of the view is not a number, so that such a replica comes last.
double PredictTtft(const ReplicaView& view, int64_t prompt_tokens);

struct RoutingQuery {
  RoutingPolicy policy = RoutingPolicy::kPrefix;
  uint64_t key = 0;       // of the beginning that it is routed by
  bool key_says = false;  // the client gave the key: it is left for what saves the margin alone
  int64_t prompt_tokens = 0;
  double objective_seconds = 2;  // wanted TTFT
  uint64_t turn = 0;             // of kRoundRobin: requests so far
};

struct RoutingDecision {
  std::optional<size_t> replica;  // nothing: none may be chosen
  RoutingReason reason = RoutingReason::kNone;
  double predicted_ttft = 0;  // seconds
  RendezvousPair candidates;  // of kPrefix
};

// Of the objective: by how much less another server must cost to take a request from where its prompt's beginning lives, and
// by how much longer than believed a server's queue may be before it sends a request back. What is believed of queues is a
// little wrong, and conversations should not move for that.
inline constexpr double kSpillMargin = 0.1;

// How often a server may send a request back. Then the request goes to the best of those that did: their reports are new,
// while the next server that old state prefers has a longer queue than believed, too, and the prompt not in its cache.
inline constexpr int kMaxTurnAways = 3;

// Of the views that ChooseReplica chooses among: kReady where one is, or else kSpare; kOut where none may be chosen.
ReplicaView::Standing ChosenFrom(absl::Span<const ReplicaView> views);

// Chooses among the views that are ready, or else among the spare ones. A pure function. O(replicas).
RoutingDecision ChooseReplica(const RoutingQuery& query, absl::Span<const ReplicaView> views);

}  // namespace aludel
