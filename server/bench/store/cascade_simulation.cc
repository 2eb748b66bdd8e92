#include "server/bench/store/cascade_simulation.h"

#include <algorithm>
#include <limits>

namespace aludel {
namespace {

// By how much less a block is worth than the one in front of it, without which it is not found.
constexpr double kBehind = 1e-6;

}  // namespace

CascadeSimulation::CascadeSimulation(absl::Span<const TraceRequest> trace, const StoreSimOptions& options)
    : trace_(trace), options_(options), held_(options.devices.size()), used_(options.devices.size()) {
  if (options.policy == "belady") FindNextUses();
}

StoreSimResult CascadeSimulation::Run() {
  StoreSimResult result;
  StoreSimTally tally(options_, &result);
  for (size_t i = 0; i < trace_.size(); ++i) {
    const TraceRequest& request = trace_[i];
    bool missed = false;
    for (size_t b = 0; b < request.blocks.size(); ++b) {
      Entry& entry = entries_[request.blocks[b]];
      const int64_t tokens = BlockTokens(request, b);
      missed = missed || entry.device == kNowhere;
      if (!missed) {
        tally.Load(static_cast<size_t>(entry.device), 0, tokens,
                   static_cast<double>(tokens) * options_.formats[0].bytes_per_token);
      }
      Put(request.blocks[b], &entry, kNowhere);
      entry.order = OrderOf(i, b);
      Put(request.blocks[b], &entry, 0);
    }
    tally.End(request.input_tokens, 0);
    MakeRoom();
    for (size_t d = 0; d < used_.size(); ++d) {
      result.most_used = std::max(result.most_used, used_[d] / options_.devices[d].bytes);
    }
  }
  tally.Finish();
  return result;
}

void CascadeSimulation::FindNextUses() {
  std::unordered_map<int64_t, double> next;
  next_uses_.resize(trace_.size());
  for (size_t i = trace_.size(); i-- > 0;) {
    for (const int64_t block : trace_[i].blocks) {
      const auto known = next.find(block);
      next_uses_[i].push_back(known == next.end() ? std::numeric_limits<double>::infinity() : known->second);
      next[block] = static_cast<double>(i);
    }
  }
}

double CascadeSimulation::OrderOf(size_t request, size_t block) const {
  if (!next_uses_.empty()) return -next_uses_[request][block];
  return static_cast<double>(request) - static_cast<double>(block) * kBehind;
}

void CascadeSimulation::Put(int64_t block, Entry* entry, int device) {
  const double bytes = options_.formats[0].bytes_per_token * kTraceBlock;
  if (entry->device != kNowhere) {
    held_[entry->device].erase({entry->order, block});
    used_[entry->device] -= bytes;
  }
  entry->device = device;
  if (device == kNowhere) return;
  held_[device].insert({entry->order, block});
  used_[device] += bytes;
}

void CascadeSimulation::MakeRoom() {
  for (size_t d = 0; d < used_.size(); ++d) {
    const int below = d + 1 == used_.size() ? kNowhere : static_cast<int>(d) + 1;
    while (used_[d] > options_.devices[d].bytes) {
      const int64_t block = held_[d].begin()->second;
      Put(block, &entries_[block], below);
    }
  }
}

}  // namespace aludel
