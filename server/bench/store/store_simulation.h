#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/bench/request_trace.h"

namespace aludel {

// One format of an entry: what a token takes in it, what it loses, and what decoding one costs.
struct StoreSimFormat {
  std::string name;
  double bytes_per_token = 0;
  double kl = 0;  // nats a token
  double decode_seconds = 0;
};

struct StoreSimDevice {
  std::string name;
  double bytes = 0;
  double bytes_per_second = 0;
};

struct StoreSimOptions {
  // "lru", "score" and "belady" keep all entries in the first of the formats, and move them down a device when one is
  // full: what was used least recently; what has the least decayed count of uses; or what is used latest (which only
  // a simulator knows). "utility" chooses formats and devices for all entries at once with server/store/placement, and
  // "greedy" makes the cheapest demotion of all (NextDemotion) while a device is too full, as a server does; an entry's
  // format only ever becomes a worse one.
  std::string policy = "utility";
  std::vector<StoreSimFormat> formats;  // best first
  std::vector<StoreSimDevice> devices;  // fastest first
  double prefill_tokens_per_second = 10000;
  double kl_seconds = 0;  // what a nat of loss on one token is worth
  double half_life_seconds = 600;
};

struct StoreSimResult {
  double mean_delay = 0;           // of a prompt: loads, decoding and prefill of what was not found
  double mean_kl = 0;              // of a prompt's token
  std::vector<double> hit_shares;  // of all prompt tokens, from each device
  double most_used = 0;            // of a device's bytes, after a request
  double bound_share = 1;          // utility of the placements over their bounds; 1 for the other policies
};

StoreSimResult SimulateStore(absl::Span<const TraceRequest> trace, const StoreSimOptions& options);

}  // namespace aludel
