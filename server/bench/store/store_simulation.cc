#include "server/bench/store/store_simulation.h"

#include <algorithm>
#include <random>

#include "server/bench/store/cascade_simulation.h"
#include "server/bench/store/server_simulation.h"

namespace aludel {

StoreSimResult SimulateStore(absl::Span<const TraceRequest> trace, const StoreSimOptions& options) {
  if (options.policy == "lru" || options.policy == "belady") return CascadeSimulation(trace, options).Run();
  return ServerSimulation(trace, options).Run();
}

std::vector<size_t> DrawFormats(size_t requests, const StoreSimOptions& options) {
  std::vector<double> shares;
  for (const StoreSimFormat& format : options.formats) shares.push_back(format.share);
  std::mt19937_64 random(options.seed);
  std::discrete_distribution<size_t> draw(shares.begin(), shares.end());
  std::vector<size_t> formats(requests);
  for (size_t& format : formats) format = draw(random);
  return formats;
}

int64_t BlockTokens(const TraceRequest& request, size_t block) {
  return std::min(kTraceBlock, request.input_tokens - static_cast<int64_t>(block) * kTraceBlock);
}

StoreSimTally::StoreSimTally(const StoreSimOptions& options, StoreSimResult* result)
    : options_(options), result_(result) {
  result_->hit_shares.resize(options.devices.size());
}

void StoreSimTally::Load(size_t device, size_t format, int64_t tokens, double bytes) {
  found_ += tokens;
  result_->hit_shares[device] += static_cast<double>(tokens);
  delay_ += bytes / options_.devices[device].bytes_per_second +
            static_cast<double>(tokens) * options_.formats[format].decode_seconds;
}

void StoreSimTally::End(int64_t tokens, size_t format) {
  delay_ += static_cast<double>(tokens - found_) / options_.prefill_tokens_per_second;
  kl_ += static_cast<double>(tokens) * options_.formats[format].kl;
  tokens_ += static_cast<double>(tokens);
  ++requests_;
  if (found_ > 0) ++(found_ == tokens ? result_->whole_hits : result_->partial_hits);
  found_ = 0;
}

void StoreSimTally::Finish() {
  const double requests = std::max(1.0, requests_);
  const double tokens = std::max(1.0, tokens_);
  result_->mean_delay = delay_ / requests;
  result_->mean_kl = kl_ / tokens;
  result_->whole_hits /= requests;
  result_->partial_hits /= requests;
  for (double& share : result_->hit_shares) share /= tokens;
}

}  // namespace aludel
