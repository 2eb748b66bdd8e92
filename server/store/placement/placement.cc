#include "server/store/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace aludel {
namespace {

using Options = std::vector<PlacementOption>;

// Rounds over the devices, as long as each brings the bound down by this share.
constexpr int kRounds = 6;
constexpr double kRoundGain = 1e-3;
// Prices lie within so many orders of magnitude of the highest that an option is worth; their logarithm's interval is
// halved so often, which makes them right to a few parts in ten thousand.
constexpr double kPriceRange = 1e9;
constexpr int kHalvings = 18;

// The option that is worth most at these prices; kNowhere where none is worth anything.
int Best(const Options& options, absl::Span<const double> prices, double* worth) {
  int best = Placement::kNowhere;
  *worth = 0;
  for (size_t i = 0; i < options.size(); ++i) {
    const double value = options[i].utility - prices[options[i].device] * options[i].bytes;
    if (value > *worth) {
      *worth = value;
      best = static_cast<int>(i);
    }
  }
  return best;
}

double BytesOn(absl::Span<const Options> entries, int device, absl::Span<const double> prices) {
  double bytes = 0;
  double worth = 0;
  for (const Options& options : entries) {
    const int best = Best(options, prices, &worth);
    if (best != Placement::kNowhere && options[best].device == device) bytes += options[best].bytes;
  }
  return bytes;
}

// The lowest price at which the device is not too full.
void SetPrice(absl::Span<const Options> entries, int device, double capacity, std::vector<double>* prices) {
  double& price = (*prices)[device];
  price = 0;
  if (BytesOn(entries, device, *prices) <= capacity) return;
  double high = 0;
  for (const Options& options : entries) {
    for (const PlacementOption& option : options) {
      if (option.device == device && option.bytes > 0) high = std::max(high, option.utility / option.bytes);
    }
  }
  double low = high / kPriceRange;
  for (int i = 0; i < kHalvings; ++i) {
    price = std::sqrt(low * high);
    (BytesOn(entries, device, *prices) <= capacity ? high : low) = price;
  }
  price = high;
}

// Where prices leave room: the moves that gain most a byte, of those that fit.
void FillUp(absl::Span<const Options> entries, std::vector<double>* room, std::vector<int>* chosen) {
  struct Move {
    size_t entry;
    int option;
    double gain;
    double rate;
  };
  std::vector<Move> moves;
  for (size_t i = 0; i < entries.size(); ++i) {
    const double now = (*chosen)[i] == Placement::kNowhere ? 0 : entries[i][(*chosen)[i]].utility;
    for (size_t o = 0; o < entries[i].size(); ++o) {
      const PlacementOption& option = entries[i][o];
      const double gain = option.utility - now;
      if (gain <= 0 || option.bytes > (*room)[option.device]) continue;
      moves.push_back({i, static_cast<int>(o), gain, gain / std::max(option.bytes, 1.0)});
    }
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.rate > b.rate; });
  std::vector<bool> moved(entries.size());
  for (const Move& move : moves) {
    const PlacementOption& to = entries[move.entry][move.option];
    if (moved[move.entry] || to.bytes > (*room)[to.device]) continue;
    moved[move.entry] = true;
    int& at = (*chosen)[move.entry];
    if (at != Placement::kNowhere) (*room)[entries[move.entry][at].device] += entries[move.entry][at].bytes;
    (*room)[to.device] -= to.bytes;
    at = move.option;
  }
}

}  // namespace

Placement PlaceByUtility(absl::Span<const Options> entries, absl::Span<const double> capacities) {
  Placement placement;
  placement.prices.resize(capacities.size());
  placement.bound = 1e300;
  // Any prices give a bound; the best of the rounds is kept.
  std::vector<double> prices = placement.prices;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t device = 0; device < capacities.size(); ++device) {
      SetPrice(entries, static_cast<int>(device), capacities[device], &prices);
    }
    double bound = std::inner_product(prices.begin(), prices.end(), capacities.begin(), 0.0);
    double worth = 0;
    for (const Options& options : entries) {
      Best(options, prices, &worth);
      bound += worth;
    }
    const double gain = placement.bound - bound;
    if (gain > 0) {
      placement.bound = bound;
      placement.prices = prices;
    }
    if (gain < kRoundGain * bound) break;
  }
  std::vector<double> room(capacities.begin(), capacities.end());
  double worth = 0;
  for (const Options& options : entries) {
    int best = Best(options, placement.prices, &worth);
    // Prices of a later device may have driven entries to an earlier one.
    if (best != Placement::kNowhere && options[best].bytes > room[options[best].device])
      best = Placement::kNowhere;
    if (best != Placement::kNowhere) room[options[best].device] -= options[best].bytes;
    placement.chosen.push_back(best);
  }
  FillUp(entries, &room, &placement.chosen);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (placement.chosen[i] != Placement::kNowhere)
      placement.utility += entries[i][placement.chosen[i]].utility;
  }
  return placement;
}

double SecondsSaved(double prefill_seconds, double bytes, double bytes_per_second, double decode_seconds,
                    double kl, double kl_seconds) {
  return prefill_seconds - bytes / bytes_per_second - decode_seconds - kl_seconds * kl;
}

double UsedWithin(double seconds, double half_life_seconds) {
  return 1 - std::exp2(-seconds / half_life_seconds);
}

Demotion NextDemotion(absl::Span<const KeptForm> forms, int from, double rest) {
  const KeptForm& now = forms[from];
  Demotion next{Demotion::kAway, (now.seconds - rest) / std::max(now.bytes, 1e-9)};
  for (int to = from + 1; to < static_cast<int>(forms.size()); ++to) {
    const double freed = now.bytes - forms[to].bytes;
    if (freed <= 0) continue;
    const double price = (now.seconds - forms[to].seconds) / freed;
    if (price < next.price) next = {to, price};
  }
  return next;
}

void DecayedCount::Add(double now_seconds, double half_life_seconds) {
  const double event = now_seconds / half_life_seconds;
  const double high = std::max(log2_weight_, event);
  log2_weight_ = high + std::log2(std::exp2(log2_weight_ - high) + std::exp2(event - high));
}

double DecayedCount::At(double now_seconds, double half_life_seconds) const {
  return std::exp2(log2_weight_ - now_seconds / half_life_seconds);
}

}  // namespace aludel
