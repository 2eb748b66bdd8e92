#include "transport/link_emulator.h"

#include <algorithm>

namespace aludel {

LinkEmulator::LinkEmulator(const LinkEmulation& options, uint64_t stream)
    : options_(options), random_(options.seed ^ (stream * 0x9E3779B97F4A7C15)) {}

LinkFate::Kind LinkEmulator::Draw(size_t payload_bytes) {
  const double sum = options_.lost_share + options_.spoiled_share + options_.doubled_share;
  if (sum == 0) return LinkFate::kWell;
  const double draw = std::uniform_real_distribution<double>(0, 1)(random_);
  if (draw < options_.lost_share) return LinkFate::kLost;
  if (draw < options_.lost_share + options_.spoiled_share) {
    return payload_bytes > 0 ? LinkFate::kSpoiled : LinkFate::kLost;
  }
  return draw < sum ? LinkFate::kDoubled : LinkFate::kWell;
}

LinkFate LinkEmulator::Admit(absl::Time now, absl::Span<const uint8_t> payload) {
  LinkFate fate;
  free_at_ = std::max(free_at_, now);
  if (options_.bytes_per_second > 0) {
    free_at_ += absl::Seconds(static_cast<double>(payload.size()) / options_.bytes_per_second);
  }
  fate.due = free_at_ + options_.delay;
  fate.kind = Draw(payload.size());
  if (fate.kind == LinkFate::kSpoiled) {
    fate.spoiled.assign(payload.begin(), payload.end());
    const size_t bit = random_() % (8 * payload.size());
    fate.spoiled[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  return fate;
}

}  // namespace aludel
