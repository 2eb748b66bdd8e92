#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aludel {

// What a gRPC port may take at a time. Health, reflection and calls that are answered at once are not counted as calls.
struct GrpcLimits {
  int max_calls = 1024;
  uint64_t memory_bytes = 256 << 20;  // of gRPC's own: connections, messages that come and go
};

// Places of the calls in progress, over all connections of a port. Thread-safe; a place may outlive it.
class CallLimit {
 public:
  explicit CallLimit(int max_calls) : max_calls_(max_calls), taken_(std::make_shared<std::atomic<int>>(0)) {}

  // Gives its place back when it dies.
  class Place {
   public:
    explicit Place(std::shared_ptr<std::atomic<int>> taken) : taken_(std::move(taken)) {}
    ~Place() { taken_->fetch_sub(1); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    const std::shared_ptr<std::atomic<int>> taken_;
  };
  // Null where all are taken.
  std::shared_ptr<const Place> Take() const {
    if (taken_->fetch_add(1) < max_calls_) return std::make_shared<const Place>(taken_);
    taken_->fetch_sub(1);
    return nullptr;
  }
  // What a call that finds no place ends with.
  absl::Status Full() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has ", max_calls_, " calls in progress already"));
  }

 private:
  const int max_calls_;
  const std::shared_ptr<std::atomic<int>> taken_;
};

}  // namespace aludel
