#include "server/store/pins.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace aludel {

absl::Status Pins::Pin(absl::Span<const Wish> chunks, absl::Time until, absl::Time now) {
  DropEnded(now);
  size_t bytes = 0;
  for (const Wish& wish : chunks) {
    const auto pin = pins_.find(wish.key);
    const size_t has = pin == pins_.end() ? 0 : pin->second.bytes;
    bytes += std::max(has, wish.bytes) - has;
  }
  if (bytes_ + bytes > budget_) {
    return absl::ResourceExhaustedError(absl::StrCat("pins: ", bytes, " bytes more, beside ", bytes_,
                                                     " that are pinned; pinned_bytes is ", budget_));
  }
  for (const Wish& wish : chunks) {
    Pinned& pin = pins_.try_emplace(wish.key, Pinned{until, 0}).first->second;
    pin.until = std::max(pin.until, until);
    if (wish.bytes <= pin.bytes) continue;
    bytes_ += wish.bytes - pin.bytes;
    pin.bytes = wish.bytes;
  }
  return absl::OkStatus();
}

bool Pins::Resize(const ChunkKey& key, size_t bytes, absl::Time now) {
  if (!IsPinned(key, now)) return true;
  if (bytes_ - pins_[key].bytes + bytes > budget_) DropEnded(now);
  Pinned& pin = pins_[key];
  if (bytes > pin.bytes && bytes_ - pin.bytes + bytes > budget_) return false;
  bytes_ += bytes - pin.bytes;
  pin.bytes = bytes;
  return true;
}

bool Pins::Unpin(const ChunkKey& key) {
  const auto pin = pins_.find(key);
  if (pin == pins_.end()) return false;
  bytes_ -= pin->second.bytes;
  pins_.erase(pin);
  return true;
}

absl::Time Pins::Until(const ChunkKey& key) const {
  if (pins_.empty()) return absl::InfinitePast();
  const auto pin = pins_.find(key);
  return pin == pins_.end() ? absl::InfinitePast() : pin->second.until;
}

std::vector<ChunkKey> Pins::Keys() const {
  std::vector<ChunkKey> keys;
  for (const auto& pin : pins_) keys.push_back(pin.first);
  return keys;
}

void Pins::Clear() {
  pins_.clear();
  bytes_ = 0;
}

void Pins::DropEnded(absl::Time now) {
  absl::erase_if(pins_, [&](const auto& pin) {
    if (pin.second.until > now) return false;
    bytes_ -= pin.second.bytes;
    return true;
  });
}

}  // namespace aludel
