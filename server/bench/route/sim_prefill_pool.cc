#include "server/bench/route/sim_prefill_pool.h"

#include <algorithm>

namespace aludel {

double PrefillAlone(const SimCosts& costs, int64_t tokens, int64_t cached) {
  const auto all = static_cast<double>(tokens), had = static_cast<double>(cached);
  const int64_t steps = (tokens - cached + costs.chunk_tokens - 1) / costs.chunk_tokens;
  return costs.step * static_cast<double>(steps) + costs.per_token * (all - had) +
         costs.per_pair * (all * all - had * had);
}

SimPrefillPool::SimPrefillPool(const SimPrefill& prefill, const SimCosts& costs)
    : prefill_(prefill), costs_(costs) {
  for (int i = 0; i < prefill.servers; ++i) servers_.push_back({.cache = PrefixLru(costs.cache_tokens)});
}

SimPrefillPool::Times SimPrefillPool::TimesOf(const Server& server, const PrefixKeys& keys, int64_t cached,
                                              double now) const {
  const double begin = std::max(now, server.free_at);
  Times times;
  times.computed = begin + PrefillAlone(costs_, keys.tokens, cached) / prefill_.speed;
  const double bytes = prefill_.bytes_per_token * static_cast<double>(keys.tokens);
  times.sent =
      std::max(times.computed, std::max(begin, server.link_free_at) + bytes / prefill_.link_bytes_per_second);
  return times;
}

SimPrefillPool::Handoff SimPrefillPool::Send(const PrefixKeys& keys, double now) {
  Server* best = nullptr;
  Times times;
  int64_t cached = 0;
  for (Server& server : servers_) {
    const int64_t had = std::min(server.cache.Match(keys), keys.tokens - 1);
    const Times its = TimesOf(server, keys, had, now);
    if (best != nullptr && its.sent >= times.sent) continue;
    best = &server;
    times = its;
    cached = had;
  }
  best->free_at = times.computed;
  best->link_free_at = times.sent;
  scratch_.clear();
  best->cache.Touch(keys, keys.size(), &scratch_, &scratch_);
  sent_bytes_ += prefill_.bytes_per_token * static_cast<double>(keys.tokens);
  return {.at = times.sent, .cached_tokens = cached};
}

}  // namespace aludel
