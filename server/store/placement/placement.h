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

// What a form of an entry costs and saves: a format, or a cut of it, on one device.
struct KeptForm {
  double bytes = 0;  // a token, on the device
  double seconds =
      0;  // that one use of a token is worth: prefill saved, less the load, less what its loss is worth
};

// What one use of a token saves where its form is `bytes` a token on a device that reads so fast: the planner's costs.
// `kl_seconds`: what a nat of loss on one token is worth.
double SecondsSaved(double prefill_seconds, double bytes, double bytes_per_second, double decode_seconds,
                    double kl, double kl_seconds);

// The share of expected uses that come within so many seconds, where in each half-life half of those come that are left.
double UsedWithin(double seconds, double half_life_seconds);

// The next move of an entry on a device that is too full.
struct Demotion {
  static constexpr int kAway = -1;  // from the device
  int to = kAway;                   // a form
  double price = 0;                 // seconds lost a byte freed, for one use; below 0: it gains
};

// From forms[from] to the neighbor of it on the upper convex hull over bytes and seconds of the smaller forms behind it
// and of being away, which keeps `rest` (from a slower device) and no bytes: the move that costs least a byte. A
// sequence of such moves has growing prices, so that the cheapest ones over all entries, taken until the device is
// within its limit, are what the linear relaxation takes, all but a part of the last.
Demotion NextDemotion(absl::Span<const KeptForm> forms, int from, double rest);

// A count of events that loses half of its weight in each half-life, kept as the logarithm of its weight at a common
// epoch: counts of different ages compare without being touched.
class DecayedCount {
 public:
  void Add(double now_seconds, double half_life_seconds);
  // Events that still count now.
  double At(double now_seconds, double half_life_seconds) const;
  // There was none.
  bool empty() const { return log2_weight_ == kNone; }
  // The logarithm of the weight at the epoch, by which counts compare at any time.
  double Log2AtEpoch() const { return log2_weight_; }

 private:
  static constexpr double kNone = -1e300;

  double log2_weight_ = kNone;
};

}  // namespace aludel
