#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/gateway/routing/policy/prefix_keys.h"

namespace aludel {

// Rendezvous hashing: a key lives at the member with the highest score, so every gateway that knows the same members finds
// the same one, a member that comes takes its share of keys and moves no others, and one that goes leaves its keys to those
// that were second.

// A member's identity; `name` must be the same on all gateways.
uint64_t RendezvousId(const std::string& name);

struct RendezvousMember {
  uint64_t id = 0;
  double weight = 1;  // its share of keys beside members of weight 1; 0 or less, or not a number: none
};

// In (0, 1), larger for larger hashes.
inline double RendezvousUniform(uint64_t hash) { return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53; }

// -weight / ln(u) gives each member its weight's share of keys (weighted rendezvous hashing). Of members of weight 1 the
// order is that of their hashes, so that a logarithm is needed for few.
struct RendezvousScore {
  uint64_t hash = 0;
  double weight = 1;

  bool Beats(const RendezvousScore& other) const {
    if (weight == other.weight) return hash > other.hash;
    return weight / std::log(RendezvousUniform(hash)) <
           other.weight / std::log(RendezvousUniform(other.hash));
  }
};

// Indexes of the members that a key lives at and would live at next. Fewer where there are fewer. O(members).
struct RendezvousPair {
  std::optional<size_t> first;
  std::optional<size_t> second;
};
template <typename MemberAt>  // RendezvousMember(size_t index)
RendezvousPair PickPair(uint64_t key, size_t count, const MemberAt& member) {
  RendezvousPair pair;
  RendezvousScore first, second;
  for (size_t i = 0; i < count; ++i) {
    const auto [id, weight] = member(i);
    if (!(weight > 0)) continue;
    const RendezvousScore score = {MixBits(key ^ id), weight};
    if (!pair.first || score.Beats(first)) {
      pair.second = std::exchange(pair.first, i);
      second = std::exchange(first, score);
    } else if (!pair.second || score.Beats(second)) {
      pair.second = i;
      second = score;
    }
  }
  return pair;
}

// All of `names`, in the order in which they are asked for the key.
std::vector<std::string> RendezvousOrder(uint64_t key, const std::vector<std::string>& names);

}  // namespace aludel
