#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/bench/request_cost.h"

namespace aludel {

// The costs of any number of requests: medians per byte over all, the worst of each kind, and the bytes of those
// that are worst of all. Not thread-safe.
class CostTally {
 public:
  static constexpr int kFlaggedRatio = 100;  // to the median per byte

  // `directory`: where the worst requests and those that break a bound are written; "": nowhere.
  CostTally(std::string name, std::string directory)
      : name_(std::move(name)), directory_(std::move(directory)) {}

  // Whether it would be the worst of its kind, or breaks a bound. A busy machine makes such, too: measure again.
  bool IsRemarkable(const RequestCost& cost) const;
  // `text` is the request, or its body. Prints what breaks a bound.
  void Add(const RequestCost& cost, absl::string_view text);

  size_t requests() const { return times_.size(); }
  int broken() const { return broken_; }
  // Lists the `worst` kinds by each measure.
  void Print(int worst) const;

 private:
  using Measure = double (*)(const RequestCost&);
  struct Ranking {
    const char* title;
    const char* file;
    Measure measure;
    std::map<std::string, RequestCost> worst;  // by kind
    double most = 0;
  };

  void Save(const std::string& file, const RequestCost& cost, absl::string_view text) const;
  double MedianOf(bool memory) const;

  const std::string name_;
  const std::string directory_;
  std::vector<float> times_;   // seconds per byte, of every request
  std::vector<float> memory_;  // bytes per byte
  std::map<std::string, int> broken_kinds_;
  int broken_ = 0;
  std::vector<Ranking> rankings_ = {
      {"CPU time", "cpu", [](const RequestCost& cost) { return cost.seconds; }, {}},
      {"CPU time a byte", "cpu_per_byte", [](const RequestCost& cost) { return cost.SecondsPerByte(); }, {}},
      {"memory", "memory", [](const RequestCost& cost) { return static_cast<double>(cost.peak_bytes); }, {}},
      {"memory a byte", "memory_per_byte", [](const RequestCost& cost) { return cost.MemoryPerByte(); }, {}}};
};

}  // namespace aludel
