#include "server/handoff/frame_ring.h"

#include <algorithm>

#include "kernels/check.h"

namespace aludel {

std::optional<absl::Span<uint8_t>> FrameRing::Take(size_t bytes) {
  const size_t weight = Weight(bytes);
  size_t offset = 0;
  if (!places_.empty()) {
    const size_t tail = places_.front().offset;
    offset = places_.back().offset + places_.back().weight;
    const bool wrapped = places_.back().offset < tail;
    if (!wrapped && weight > size() - offset) offset = 0;
    const bool before_tail = wrapped || offset == 0;
    if (before_tail && weight > tail - std::min(tail, offset)) return std::nullopt;
  }
  if (weight == 0 || weight > size() - offset) return std::nullopt;
  places_.push_back({offset, weight});
  held_ += weight;
  return extent_.bytes().subspan(offset, bytes);
}

void FrameRing::Shrink(const uint8_t* place, size_t bytes) {
  Place& last = places_.back();
  if (last.offset != static_cast<size_t>(place - extent_.bytes().data())) return;
  const size_t weight = std::max(Weight(bytes), kLine);
  ALUDEL_CHECK(weight <= last.weight);
  held_ -= last.weight - weight;
  last.weight = weight;
}

void FrameRing::Return(const uint8_t* place) {
  const auto offset = static_cast<size_t>(place - extent_.bytes().data());
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& one) { return one.offset == offset && !one.returned; });
  ALUDEL_CHECK(found != places_.end());
  found->returned = true;
  while (!places_.empty() && places_.front().returned) {
    held_ -= places_.front().weight;
    returned_ += places_.front().weight;
    places_.pop_front();
  }
}

}  // namespace aludel
