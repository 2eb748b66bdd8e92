#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

// Where each entry of a store is kept and in which format, as a problem of its own: pure functions over plain values,
// which a server and a simulator run alike.

// One way to keep an entry: a format on a device. Keeping it nowhere takes no bytes and is worth nothing.
struct PlacementOption {
  int device = 0;
  double bytes = 0;
  double utility = 0;  // of any unit; an option worth nothing is never chosen
};

struct Placement {
  static constexpr int kNowhere = -1;
  std::vector<int> chosen;  // of each entry's options
  double utility = 0;
  // No placement within the capacities is worth more: the value of the problem's Lagrangian dual at `prices`.
  double bound = 0;
  std::vector<double> prices;  // of a byte of each device, in utility
};

// Chooses one option, or none, for each entry, so that their utilities sum to much and no device has more than its
// capacity. At given prices each entry takes the option with the largest utility less price, which is the one where the
// price crosses the upper convex hull of its options; prices are those at which the devices are just not too full. What
// is left of a device then goes to the entries that gain most a byte.
Placement PlaceByUtility(absl::Span<const std::vector<PlacementOption>> entries,
                         absl::Span<const double> capacities);

// A count of events that loses half of its weight in each half-life, kept as the logarithm of its weight at a common
// epoch: counts of different ages compare without being touched.
class DecayedCount {
 public:
  void Add(double now_seconds, double half_life_seconds);
  // Events that still count now.
  double At(double now_seconds, double half_life_seconds) const;
  // The logarithm of the weight at the epoch, by which counts compare at any time.
  double Log2AtEpoch() const { return log2_weight_; }

 private:
  double log2_weight_ = -1e300;
};

}  // namespace aludel
