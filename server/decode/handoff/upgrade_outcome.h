#pragma once

#include <cstdint>

namespace aludel {

// How the second parts of a handoff's frames ended (CodecSpec::base_planes): a label of metrics. The answer goes on whatever
// it is, over what has come.
enum class UpgradeOutcome : uint8_t {
  kComplete,  // all of them are in the cache
  kEnded,     // the answer was over before
  kLate,      // the handoff's time was
  kFailed     // their run failed, or a frame of it did
};
constexpr uint8_t kUpgradeOutcomes = static_cast<uint8_t>(UpgradeOutcome::kFailed) + 1;

constexpr const char* Name(UpgradeOutcome outcome) {
  switch (outcome) {
    case UpgradeOutcome::kComplete:
      return "complete";
    case UpgradeOutcome::kEnded:
      return "ended";
    case UpgradeOutcome::kLate:
      return "late";
    case UpgradeOutcome::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace aludel
