#include "server/store/placement/use_history.h"

namespace aludel {

DecayedCount UseHistory::Find(uint64_t key) const {
  const size_t first = FirstPlace(key);
  for (size_t place = first; place < first + kWays; ++place) {
    if (places_[place].key == key) return places_[place].uses;
  }
  return {};
}

void UseHistory::Put(uint64_t key, const DecayedCount& uses) {
  const size_t first = FirstPlace(key);
  size_t taken = first;
  for (size_t place = first; place < first + kWays; ++place) {
    if (places_[place].key == key) {
      taken = place;
      break;
    }
    if (places_[place].uses.Log2AtEpoch() < places_[taken].uses.Log2AtEpoch()) taken = place;
  }
  places_[taken] = {key, uses};
}

}  // namespace aludel
