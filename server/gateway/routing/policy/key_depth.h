#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "server/gateway/routing/policy/prefix_keys.h"

namespace aludel {

// Which of a prompt's beginnings it is routed by: the shortest, unless that is hot. A beginning that more than 2 / replicas
// of the requests share would fill the two servers where it lives, so it is split: longer beginnings are routed by, until
// one is not hot. It is whole again once less than 1 / replicas share it (DualMap, arXiv 2602.06502). Shares are of about
// the last kWindow requests. Bounded by kMaxKeys; not thread-safe.
class KeyDepth {
 public:
  static constexpr double kWindow = 1024;
  static constexpr size_t kMaxKeys = 8192;

  // Index of the key to route by; 0 where there are none.
  size_t Of(const PrefixKeys& keys) const;
  // Of() after the request was counted, which is one of those that `replicas` share.
  size_t Count(const PrefixKeys& keys, int replicas);

  size_t size() const { return counts_.size(); }

 private:
  struct Count_ {
    double weight = 0;  // requests, later ones weighing more
    double born = 0;    // total_ when it was first seen
    bool split = false;
  };

  void Bound();

  absl::flat_hash_map<uint64_t, Count_> counts_;
  double total_ = 0;      // requests, weighed likewise
  double increment_ = 1;  // what the next request weighs
};

}  // namespace aludel
