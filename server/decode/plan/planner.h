#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/config/decode_options.h"
#include "server/decode/plan/plan.h"

namespace aludel {

// How a prompt gets its cache: computed here, or handed over by a prefill server. A pure function of what is
// known at admission; what it decides is exported with its reason.

struct PlanRequest {
  int64_t prompt_tokens = 0;
  std::optional<Fidelity> fidelity;  // unset: the server's default
  std::string format;                // "": the server's choice
  uint32_t choices = 1;              // answers over one cache
  bool whole = false;                // computed here from its first token: nothing that is cached is taken
  bool takes_stored = true;          // codes of earlier handoffs, of whatever age
  std::vector<std::string> targets;  // preferred prefill servers, best first; empty: the configured order
  uint64_t key = 0;  // of the prompt's beginning: which servers of a small weight it may go to
  // What trying a plan that has been measured may cost, in seconds after the best plan's first token.
  double try_seconds = std::numeric_limits<double>::infinity();
};

// A wire format as it is made by one encoder.
struct FormatOffer {
  std::string name;
  std::string encoder_hash;  // "" for formats that need no artifact

  bool operator==(const FormatOffer&) const = default;
};

// What the planner knows of one prefill server.
struct PlanTarget {
  std::string name;
  bool ready = false;
  std::vector<std::string> formats;  // shared with this server, in this server's order
  int64_t waiting_tokens = 0;        // as it reported last, or asked for by this server if that is more
  double tokens_per_second = 0;
  bool gone = false;  // none of this server's any more, and never ready: its index is its own for a while yet
  std::string site;
  bool link_open = true;  // what it sends may come over the link from its site now (SiteLinks)
  double link_used = 0;   // of what may be taken of that link, what was taken lately
  double weight = 1;      // in (0, 1]: less for one that has just started (slow_start.h)
  // The formats by their encoders: a name may be there twice while an artifact is being switched.
  std::vector<FormatOffer> offers = {};
};

// While an artifact is being switched a server has several sets of codecs, the newest first: the index of the one that most
// of the ready `targets` speak for. Each speaks for the newest of those it has the largest share of, with that share (formats
// that need no artifact tell nothing): a server that has switched still offers the old one, and one that stays behind does not
// hold the others back. Of equals the newest.
size_t ChooseSet(absl::Span<const std::vector<FormatOffer>> sets, absl::Span<const PlanTarget> targets);
// Leaves the targets the formats that they offer of this set, in its order.
void NarrowTo(absl::Span<const FormatOffer> set, std::vector<PlanTarget>* targets);

// What is known of a plan.
struct Prediction {
  std::optional<double> ttft;  // seconds to the first token; nothing where it was never measured
  bool stale = false;          // not chosen for long, so that it may be tried
  double price = 0;            // seconds that it costs others: LinkPrice, CrowdPrice
  std::optional<double> waited = std::nullopt;  // seconds after which the last one was given up, if it was
};

// Of local prefill (no target), or of a handoff, from a target or kOwnStore.
using Predict = std::function<Prediction(std::optional<size_t> target, const std::string& format)>;

// By how many seconds a handoff must be the sooner for what it takes of a link of which so much was taken lately:
// `local_seconds` are what it would take to compute it here alone. With a link that is nearly used up, what little a handoff saves
// is better saved by one that comes later.
double LinkPrice(double link_used, double local_seconds);

// By how many seconds those are later whose prompts come while this server computes what waits here, `wait` seconds, and then
// `seconds` for one more: `arrivals` a second, each later by `seconds` while something stands before it, by half of that on
// average afterwards. A long prompt that is a little sooner here makes many short ones later. At most `seconds`: where
// more come than can be served, they would only wait elsewhere (tests/bench/RESULTS.md).
double CrowdPrice(double arrivals, double wait, double seconds);

// Tokens of the prompt, from its start, that this server's own store can hand over in a format. Asked for formats that
// qualify alone: a look-up takes time.
using StoredHere = std::function<int64_t(const std::string& format)>;

// InvalidArgument for a format that is not in `formats` (this server's), or one forced together with exact fidelity. A
// forced format overrides the length threshold; where no server can deliver it the plan is local. Servers of a site whose link
// is used up are left out, and of those that have a format the ones whose weight does not take request.key, unless none
// does. Never a format that
// loses more than the fidelity allows. Of the first format in `formats` that a ready target shares, the target with the
// least work waiting; of equals the one that comes first. Under options.by_prediction the plan that `predict` expects
// soonest, what it costs others added, or a stale one that is tried instead. No request pays for that with more than twice what its
// best plan is expected to take: what is tried is expected within that, or is replaced early enough (Plan::hedge_after,
// Plan::move; the latter with the patience that any handoff has); nor, for what was measured before, with more than
// request.try_seconds. What was given up before anything was known of it says nothing of requests that may wait twice as long:
// they try it at once. Without options.hedged nothing is replaced: plans that were never measured are tried regardless, and those
// expected later are not.
//
// What the server's own store has needs no other server: in a format that qualifies, and where all but less than
// options.min_remote_tokens of what would be handed over is there, it goes before every target that has this format or a
// later one. Where no target can be asked, min_remote_tokens of it are enough. By prediction it is one more place that a
// handoff may come from; there and where no target can be asked, the rest is computed here.
absl::StatusOr<Plan> MakePlan(const PlannerOptions& options, absl::Span<const std::string> formats,
                              absl::Span<const PlanTarget> targets, const PlanRequest& request,
                              const Predict& predict = nullptr, const StoredHere& stored_here = nullptr);

// Names of the targets that a request with these `preferred` ones may use, as MakePlan ranks them, but `first`
// before all others.
std::vector<std::string> RankedAfter(size_t first, absl::Span<const PlanTarget> targets,
                                     const std::vector<std::string>& preferred);

}  // namespace aludel
