#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/bench/request_trace.h"

namespace aludel {

// One format of an entry: what a token takes in it, what it loses, what decoding one costs, and how many requests ask for it.
struct StoreSimFormat {
  std::string name;
  double bytes_per_token = 0;
  double kl = 0;  // nats a token
  double decode_seconds = 0;
  double share = 1;  // of the requests, beside those of the others
};

struct StoreSimDevice {
  std::string name;
  double bytes = 0;
  double bytes_per_second = 0;
};

struct StoreSimOptions {
  // "server" is the store that a server has, placed by utility, and "server-lru" the same with `placement: "lru"`
  // (ServerSimulation). "lru" and "belady" are for comparison (CascadeSimulation).
  std::string policy = "server";
  std::vector<StoreSimFormat> formats;  // best first; of "server" one embedded code whole, then its cuts
  std::vector<StoreSimDevice> devices;  // fastest first; of "server" memory, and perhaps a disk
  double prefill_tokens_per_second = 10000;
  // Of "server":
  int64_t chunk_tokens = kTraceBlock;  // of one step of the engine, a multiple of kTraceBlock
  uint32_t min_requests = 1;           // for a chunk, before it is written to disk
  uint64_t seed = 1;                   // of what requests ask for
};

struct StoreSimResult {
  double mean_delay = 0;  // of a prompt: loads, decoding and prefill of what was not found
  double mean_kl = 0;     // of a prompt's token: what it is handed over in loses the same, found or computed
  std::vector<double> hit_shares;  // of all prompt tokens, from each device
  double whole_hits = 0;           // of all prompts, those that were found from end to end
  double partial_hits = 0;         // that were found in part
  double most_used = 0;            // of a device's bytes, after a request
  // Of "server":
  uint64_t cuts = 0;         // chunks in memory that were cut
  double written_bytes = 0;  // to the disk
  double placement_gap = 0;  // see MemoryOrder::End; the last
};

StoreSimResult SimulateStore(absl::Span<const TraceRequest> trace, const StoreSimOptions& options);

// The format that each of so many requests asks for, drawn by the formats' shares.
std::vector<size_t> DrawFormats(size_t requests, const StoreSimOptions& options);

// Of a prompt's block.
int64_t BlockTokens(const TraceRequest& request, size_t block);

// Sums up a simulation's prompts.
class StoreSimTally {
 public:
  StoreSimTally(const StoreSimOptions& options, StoreSimResult* result);

  // So many tokens were found on a device, as `bytes` that it read, in a format.
  void Load(size_t device, size_t format, int64_t tokens, double bytes);
  // All of a prompt, asked for in a format; after its loads.
  void End(int64_t tokens, size_t format);
  // To be called last.
  void Finish();

 private:
  const StoreSimOptions& options_;
  StoreSimResult* const result_;
  int64_t found_ = 0;  // of the prompt
  double delay_ = 0, kl_ = 0, tokens_ = 0, requests_ = 0;
};

}  // namespace aludel
