#include "server/bench/store/store_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "server/store/placement/placement.h"

namespace aludel {
namespace {

// A device that is filled above the first mark is placed anew for the second, so that it is not placed for each entry.
constexpr double kHighMark = 0.95;
constexpr double kLowMark = 0.85;

// By how much less a block is worth than the one in front of it.
constexpr double kBehind = 1e-6;

// A server's marks for "greedy".
constexpr double kGreedyHighMark = 0.9;

struct Entry {
  int device = Placement::kNowhere;
  int format = 0;
  double order = 0;  // least goes first; of the device's set
  DecayedCount uses;
};

class Simulation {
 public:
  Simulation(absl::Span<const TraceRequest> trace, const StoreSimOptions& options)
      : trace_(trace),
        options_(options),
        held_(options.devices.size()),
        used_(options.devices.size()),
        classes_(options.devices.size(), std::vector<Order>(options.formats.size())) {
    result_.hit_shares.resize(options.devices.size());
    if (options.policy == "belady") FindNextUses();
  }

  StoreSimResult Run() {
    double delay = 0;
    double kl = 0;
    double tokens = 0;
    for (size_t i = 0; i < trace_.size(); ++i) {
      const TraceRequest& request = trace_[i];
      now_ = request.arrival;
      ++requests_;
      int64_t found = 0;
      bool missed = false;
      for (size_t b = 0; b < request.blocks.size(); ++b) {
        Entry& entry = entries_[request.blocks[b]];
        const double size =
            std::min(kTraceBlock, request.input_tokens - static_cast<int64_t>(b) * kTraceBlock);
        missed = missed || entry.device == Placement::kNowhere;
        if (!missed) {
          const StoreSimFormat& format = options_.formats[entry.format];
          delay += LoadSeconds(entry.format, entry.device, size);
          kl += format.kl * size;
          result_.hit_shares[entry.device] += size;
          found += static_cast<int64_t>(size);
        }
        Touch(request.blocks[b], &entry, b, NextUse(i, b));
      }
      delay += static_cast<double>(request.input_tokens - found) / options_.prefill_tokens_per_second;
      tokens += static_cast<double>(request.input_tokens);
      MakeRoom();
      for (size_t d = 0; d < used_.size(); ++d) {
        result_.most_used = std::max(result_.most_used, used_[d] / options_.devices[d].bytes);
      }
    }
    result_.mean_delay = delay / static_cast<double>(std::max<size_t>(1, trace_.size()));
    result_.mean_kl = kl / std::max(1.0, tokens);
    for (double& share : result_.hit_shares) share /= std::max(1.0, tokens);
    if (bounds_ > 0) result_.bound_share = utilities_ / bounds_;
    return result_;
  }

 private:
  double LoadSeconds(int format, int device, double tokens) const {
    const StoreSimFormat& of = options_.formats[format];
    return tokens * (of.bytes_per_token / options_.devices[device].bytes_per_second + of.decode_seconds);
  }
  double Bytes(int format) const { return options_.formats[format].bytes_per_token * kTraceBlock; }

  void FindNextUses() {
    std::unordered_map<int64_t, double> next;
    next_uses_.resize(trace_.size());
    for (size_t i = trace_.size(); i-- > 0;) {
      for (const int64_t block : trace_[i].blocks) {
        const auto known = next.find(block);
        next_uses_[i].push_back(known == next.end() ? std::numeric_limits<double>::infinity()
                                                    : known->second);
        next[block] = static_cast<double>(i);
      }
    }
  }
  double NextUse(size_t request, size_t block) const {
    return next_uses_.empty() ? 0 : next_uses_[request][block];
  }

  void Put(int64_t block, Entry* entry, int device) {
    if (entry->device != Placement::kNowhere) {
      held_[entry->device].erase({entry->order, block});
      classes_[entry->device][entry->format].erase({entry->order, block});
      used_[entry->device] -= Bytes(entry->format);
    }
    entry->device = device;
    if (device == Placement::kNowhere) return;
    used_[device] += Bytes(entry->format);
  }
  void Hold(int64_t block, const Entry& entry) {
    held_[entry.device].insert({entry.order, block});
    classes_[entry.device][entry.format].insert({entry.order, block});
  }

  // What goes first has the least. Of one request the block in front is worth more: without it those behind are not found.
  double OrderOf(const Entry& entry, size_t position, double next_use) {
    if (options_.policy == "belady") return -next_use;
    const double behind = static_cast<double>(position) * kBehind;
    if (options_.policy == "score" || options_.policy == "greedy") return entry.uses.Log2AtEpoch() - behind;
    return static_cast<double>(requests_) - behind;
  }

  // An entry that is used is in the fastest device: one that is new, in the best format.
  void Touch(int64_t block, Entry* entry, size_t position, double next_use) {
    if (entry->device == Placement::kNowhere) entry->format = 0;
    entry->uses.Add(now_, options_.half_life_seconds);
    const bool by_utility = options_.policy == "utility";
    Put(block, entry, by_utility && entry->device != Placement::kNowhere ? entry->device : 0);
    entry->order = OrderOf(*entry, position, next_use);
    Hold(block, *entry);
  }

  void MakeRoom() {
    if (options_.policy == "utility") {
      for (size_t d = 0; d < used_.size(); ++d) {
        if (used_[d] > kHighMark * options_.devices[d].bytes) return Place();
      }
      return;
    }
    if (options_.policy == "greedy") {
      for (int d = 0; d < static_cast<int>(used_.size()); ++d) {
        if (used_[d] > kGreedyHighMark * options_.devices[d].bytes) Demote(d);
      }
      return;
    }
    for (size_t d = 0; d < used_.size(); ++d) {
      while (used_[d] > options_.devices[d].bytes) {
        const int64_t block = held_[d].begin()->second;
        Entry& entry = entries_[block];
        const bool last = d + 1 == used_.size();
        Put(block, &entry, last ? Placement::kNowhere : static_cast<int>(d) + 1);
        if (!last) Hold(block, entry);
      }
    }
  }

  // What a use of one of a block's tokens saves.
  double Saved(int format, int device) const {
    const StoreSimFormat& of = options_.formats[format];
    return SecondsSaved(1 / options_.prefill_tokens_per_second, of.bytes_per_token,
                        options_.devices[device].bytes_per_second, of.decode_seconds, of.kl,
                        options_.kl_seconds);
  }

  // The cheapest moves of blocks of this device, until it is below its mark.
  void Demote(int device) {
    struct Step {
      Demotion demotion;
      int device = Placement::kNowhere;  // and format, of what is moved away
      int format = 0;
    };
    const auto formats = static_cast<int>(options_.formats.size());
    std::vector<KeptForm> forms;
    for (int format = 0; format < formats; ++format) {
      forms.push_back({options_.formats[format].bytes_per_token, Saved(format, device)});
    }
    std::vector<Step> steps(formats);
    for (int from = 0; from < formats; ++from) {
      double rest = 0;
      for (int d = device + 1; d < static_cast<int>(used_.size()); ++d) {
        for (int format = from; format < formats; ++format) {
          if (Saved(format, d) <= rest) continue;
          rest = Saved(format, d);
          steps[from].device = d;
          steps[from].format = format;
        }
      }
      steps[from].demotion = NextDemotion(forms, from, rest);
    }
    while (used_[device] > kLowMark * options_.devices[device].bytes) {
      int cheapest = -1;
      double least = std::numeric_limits<double>::infinity();
      for (int format = 0; format < formats; ++format) {
        const Order& blocks = classes_[device][format];
        if (blocks.empty()) continue;
        const double cost = blocks.begin()->first + std::log2(std::max(steps[format].demotion.price, 1e-300));
        if (cost >= least) continue;
        least = cost;
        cheapest = format;
      }
      const int64_t block = classes_[device][cheapest].begin()->second;
      const Step& step = steps[cheapest];
      const bool away = step.demotion.to == Demotion::kAway;
      Entry& entry = entries_[block];
      Put(block, &entry, Placement::kNowhere);
      if (away && step.device == Placement::kNowhere) {
        entry.uses = {};  // as in a server, which forgets it
        continue;
      }
      entry.format = away ? step.format : step.demotion.to;
      Put(block, &entry, away ? step.device : device);
      Hold(block, entry);
    }
  }

  void Place() {
    std::vector<int64_t> blocks;
    std::vector<std::vector<PlacementOption>> options;
    std::vector<std::vector<int>> formats;
    for (const auto& held : held_) {
      for (const auto& [order, block] : held) {
        const Entry& entry = entries_[block];
        const double uses = entry.uses.At(now_, options_.half_life_seconds);
        blocks.push_back(block);
        auto& of = options.emplace_back();
        auto& format_of = formats.emplace_back();
        for (int format = entry.format; format < static_cast<int>(options_.formats.size()); ++format) {
          for (int device = 0; device < static_cast<int>(options_.devices.size()); ++device) {
            of.push_back({device, Bytes(format), uses * kTraceBlock * Saved(format, device)});
            format_of.push_back(format);
          }
        }
      }
    }
    std::vector<double> capacities;
    for (const StoreSimDevice& device : options_.devices) capacities.push_back(kLowMark * device.bytes);
    const Placement placement = PlaceByUtility(options, capacities);
    utilities_ += placement.utility;
    bounds_ += placement.bound;
    for (size_t i = 0; i < blocks.size(); ++i) {
      Entry& entry = entries_[blocks[i]];
      const int chosen = placement.chosen[i];
      Put(blocks[i], &entry, Placement::kNowhere);
      if (chosen == Placement::kNowhere) continue;
      entry.format = formats[i][chosen];
      Put(blocks[i], &entry, options[i][chosen].device);
      Hold(blocks[i], entry);
    }
  }

  const absl::Span<const TraceRequest> trace_;
  const StoreSimOptions& options_;
  std::unordered_map<int64_t, Entry> entries_;
  using Order = std::set<std::pair<double, int64_t>>;
  std::vector<Order> held_;  // of each device
  std::vector<double> used_;
  std::vector<std::vector<Order>> classes_;     // of each device and format
  std::vector<std::vector<double>> next_uses_;  // "belady": of each block of each request
  double now_ = 0;
  int64_t requests_ = 0;
  double utilities_ = 0;
  double bounds_ = 0;
  StoreSimResult result_;
};

}  // namespace

StoreSimResult SimulateStore(absl::Span<const TraceRequest> trace, const StoreSimOptions& options) {
  return Simulation(trace, options).Run();
}

}  // namespace aludel
