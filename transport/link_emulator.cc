#include "transport/link_emulator.h"
#include "transport/transport_options.h"

#include <algorithm>

namespace aludel {

LinkEmulator::LinkEmulator(const LinkEmulation& options, uint64_t stream)
    : options_(options), random_(options.seed ^ (stream * 0x9E3779B97F4A7C15)) {}

LinkFate::Kind LinkEmulator::Draw(size_t payload_bytes) {
  const double sum = options_.drop_rate + options_.corrupt_rate + options_.duplicate_rate;
  if (sum == 0) return LinkFate::kWell;
  const double draw = std::uniform_real_distribution<double>(0, 1)(random_);
  if (draw < options_.drop_rate) return LinkFate::kLost;
  if (draw < options_.drop_rate + options_.corrupt_rate) {
    return payload_bytes > 0 ? LinkFate::kCorrupt : LinkFate::kLost;
  }
  return draw < sum ? LinkFate::kDuplicate : LinkFate::kWell;
}

LinkFate LinkEmulator::Admit(absl::Time now, absl::Span<const uint8_t> payload) {
  LinkFate fate;
  free_at_ = std::max(free_at_, now);
  if (options_.bytes_per_second > 0) {
    free_at_ += absl::Seconds(static_cast<double>(payload.size()) / options_.bytes_per_second);
  }
  fate.due = free_at_ + options_.delay;
  fate.kind = Draw(payload.size());
  if (fate.kind == LinkFate::kCorrupt) {
    fate.corrupted.assign(payload.begin(), payload.end());
    const size_t bit = random_() % (8 * payload.size());
    fate.corrupted[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  return fate;
}

}  // namespace aludel
