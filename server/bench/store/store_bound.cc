#include "server/bench/store/store_bound.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "server/store/placement/placement.h"

namespace aludel {

StoreSimResult BoundStore(absl::Span<const TraceRequest> trace, const StoreSimOptions& options) {
  const std::vector<size_t> formats = DrawFormats(trace.size(), options);
  std::unordered_map<int64_t, size_t> used;  // the request that last had a block
  std::vector<std::vector<PlacementOption>> uses;
  std::vector<double> sizes;  // of each use, in tokens
  double tokens = 0, nats = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const StoreSimFormat& format = options.formats[formats[i]];
    tokens += static_cast<double>(trace[i].input_tokens);
    nats += static_cast<double>(trace[i].input_tokens) * format.kl;
    for (size_t b = 0; b < trace[i].blocks.size(); ++b) {
      const auto [last, is_new] = used.try_emplace(trace[i].blocks[b], i);
      if (is_new) continue;
      const auto size = static_cast<double>(BlockTokens(trace[i], b));
      std::vector<PlacementOption>& of = uses.emplace_back();
      for (size_t device = 0; device < options.devices.size(); ++device) {
        const double saved = SecondsSaved(1 / options.prefill_tokens_per_second, format.bytes_per_token,
                                          options.devices[device].bytes_per_second, format.decode_seconds,
                                          /*kl=*/0, /*kl_seconds=*/0);
        of.push_back({static_cast<int>(device),
                      size * format.bytes_per_token * static_cast<double>(i - last->second), size * saved});
      }
      sizes.push_back(size);
      last->second = i;
    }
  }
  std::vector<double> capacities;
  for (const StoreSimDevice& device : options.devices) {
    capacities.push_back(device.bytes * static_cast<double>(trace.size()));
  }
  const Placement placement = PlaceByUtility(uses, capacities);
  StoreSimResult result;
  result.mean_delay = (tokens / options.prefill_tokens_per_second - placement.bound) /
                      static_cast<double>(std::max<size_t>(1, trace.size()));
  result.mean_kl = nats / std::max(1.0, tokens);
  result.hit_shares.resize(options.devices.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    const int chosen = placement.chosen[i];
    if (chosen != Placement::kNowhere) {
      result.hit_shares[uses[i][chosen].device] += sizes[i] / std::max(1.0, tokens);
    }
  }
  return result;
}

}  // namespace aludel
