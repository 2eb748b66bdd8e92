#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/bench/request_trace.h"
#include "server/bench/store/store_simulation.h"

namespace aludel {

// What a store is compared with: blocks in the first format alone, those that are used in the fastest device, and down a device
// when one is full: what was used least recently ("lru"), or what is used latest ("belady", which only a simulator knows). No
// overhead of a server's counts, and a block is on one device.
class CascadeSimulation {
 public:
  // Both must outlive it.
  CascadeSimulation(absl::Span<const TraceRequest> trace, const StoreSimOptions& options);
  StoreSimResult Run();

 private:
  static constexpr int kNowhere = -1;
  struct Entry {
    int device = kNowhere;
    double order = 0;  // least goes first
  };
  using Order = std::set<std::pair<double, int64_t>>;

  void FindNextUses();
  // What goes first has the least.
  double OrderOf(size_t request, size_t block) const;
  void Put(int64_t block, Entry* entry, int device);
  void MakeRoom();

  const absl::Span<const TraceRequest> trace_;
  const StoreSimOptions& options_;
  std::unordered_map<int64_t, Entry> entries_;
  std::vector<Order> held_;                     // of each device
  std::vector<double> used_;                    // bytes, likewise
  std::vector<std::vector<double>> next_uses_;  // "belady": of each block of each request
};

}  // namespace aludel
