#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/codec/codec.h"

namespace aludel {

// Keeps coverages and payloads, and refuses frames after a while.
class MemorySink : public FrameSink {
 public:
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    if (coverages.size() == fails_after) return absl::UnavailableError("the link has gone");
    return absl::MakeSpan(reserved_.emplace_back(max_bytes));
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    coverages.push_back(coverage);
    payloads.emplace_back(reserved_.front().begin(), reserved_.front().begin() + static_cast<int64_t>(bytes));
    reserved_.pop_front();
    return absl::OkStatus();
  }

  std::vector<FrameCoverage> coverages;
  std::vector<std::vector<uint8_t>> payloads;
  size_t fails_after = 100;

 private:
  std::deque<std::vector<uint8_t>> reserved_;  // oldest first
};

}  // namespace aludel
