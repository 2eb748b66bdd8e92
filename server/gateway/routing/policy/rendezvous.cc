#include "server/gateway/routing/policy/rendezvous.h"

#include <algorithm>
#include <utility>

#include "server/gateway/routing/policy/prefix_keys.h"

namespace aludel {

uint64_t RendezvousId(const std::string& name) { return HashTexts({name}); }

std::vector<std::string> RendezvousOrder(uint64_t key, const std::vector<std::string>& names) {
  std::vector<std::pair<uint64_t, const std::string*>> ranked;
  for (const std::string& name : names) ranked.emplace_back(MixBits(key ^ RendezvousId(name)), &name);
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : *a.second < *b.second;
  });
  std::vector<std::string> order;
  for (const auto& [hash, name] : ranked) order.push_back(*name);
  return order;
}

}  // namespace aludel
