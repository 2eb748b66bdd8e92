#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/config/decode_options.h"

namespace aludel {

// What this server's handoffs may take of links to other sites. Each link with a limit has a bucket that holds kBurst of it: a
// handoff takes what it is expected to be when it begins, and what it was when it has ended, and none is planned while the
// bucket is empty. So over any time T at most T + kBurst of the limit is used, but for what began together when little was
// left. Which prompts are worth the
// link is left to the predicted times of both ways, and to a price that rises as the bucket empties (LinkPrice): over simulated
// days they were served sooner so than with a length below which nothing is handed over that rises, which
// Prefill-as-a-Service has (arXiv 2604.15039; tests/bench/RESULTS.md). Times are of MonotonicNow(). Not thread-safe.
class SiteLinks {
 public:
  static constexpr absl::Duration kBurst = absl::Seconds(10);

  // One handoff's part of it.
  struct Use {
    std::string site;
    double expected_bytes = 0;
  };

  explicit SiteLinks(const std::vector<SiteLimit>& limits);

  // Whether a handoff from there may begin.
  bool Open(const std::string& site, absl::Time now) const { return UsedShare(site, now) < 1; }
  // Of the bucket, what is taken; more than 1 where the last handoff took more than there was, 0 where there is no limit.
  double UsedShare(const std::string& site, absl::Time now) const;
  // Sites with a limit.
  std::vector<std::string> sites() const;

  void Begin(const Use& use, absl::Time now) { Take(use.site, use.expected_bytes, now); }
  void End(const Use& use, double bytes, absl::Time now) { Take(use.site, bytes - use.expected_bytes, now); }

 private:
  struct Link {
    double limit = 0;  // bytes a second
    double taken = 0;  // bytes of its bucket
    absl::Time at = absl::InfinitePast();
    // As it is at `now`.
    Link At(absl::Time now) const;
  };
  void Take(const std::string& site, double bytes, absl::Time now);

  std::map<std::string, Link> links_;
};

}  // namespace aludel
