#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace aludel {

// How a request is served: a label of metrics, and Started.plan.
enum class PlanKind : uint8_t {
  kLocal,     // computed here
  kRemote,    // handed over by a prefill server
  kCached,    // computed here after what earlier handoffs have left
  kStored,    // over the codes of an earlier handoff, from this server's own store
  kFallback,  // computed here after a handoff failed
  kShed       // refused
};

constexpr const char* Name(PlanKind kind) {
  switch (kind) {
    case PlanKind::kLocal:
      return "local";
    case PlanKind::kRemote:
      return "remote";
    case PlanKind::kCached:
      return "cached";
    case PlanKind::kStored:
      return "stored";
    case PlanKind::kFallback:
      return "fallback";
    case PlanKind::kShed:
      return "shed";
  }
  return "unknown";
}

// Why a plan was chosen: a label of metrics.
enum class PlanReason : uint8_t {
  kFidelity,     // exact answers are computed here
  kShortPrompt,  // too little to hand over
  kNoTarget,     // no prefill server is ready
  kNoFormat,     // none that is ready has a format that the fidelity allows
  kSiteLimit,    // those that have one are at sites whose links are used up
  kCoded,        // the first format that qualifies, from the least busy target
  kForced,       // the request names its format
  kFastest,      // by prediction
  kExplore,      // without a prediction, or with an old one
  kCached,       // earlier handoffs have left enough of the prompt here
  kArena,        // no receive memory for a handoff
  kDeadline,     // its first token cannot come in time
  kAdapter       // no decoder that this server has is for the adapter
};

constexpr const char* Name(PlanReason reason) {
  switch (reason) {
    case PlanReason::kFidelity:
      return "fidelity";
    case PlanReason::kShortPrompt:
      return "short_prompt";
    case PlanReason::kNoTarget:
      return "no_target";
    case PlanReason::kNoFormat:
      return "no_format";
    case PlanReason::kSiteLimit:
      return "site_limit";
    case PlanReason::kCoded:
      return "coded";
    case PlanReason::kForced:
      return "forced";
    case PlanReason::kFastest:
      return "fastest";
    case PlanReason::kExplore:
      return "explore";
    case PlanReason::kCached:
      return "cached";
    case PlanReason::kArena:
      return "arena";
    case PlanReason::kDeadline:
      return "deadline";
    case PlanReason::kAdapter:
      return "adapter";
  }
  return "unknown";
}

// In place of a target's index: this server's own store of received codes.
inline constexpr size_t kOwnStore = static_cast<size_t>(-1);

struct Plan {
  PlanKind kind = PlanKind::kLocal;
  size_t target =
      0;  // of a remote plan: index into the targets that MakePlan was given; of a stored one kOwnStore
  std::string format;
  int64_t handed_over_tokens = 0;  // of the prompt, from its start: what frames are for
  int64_t cached_tokens = 0;       // of the prompt, that a plan without handoff finds in this server's cache
  PlanReason reason = PlanReason::kFastest;
  std::optional<double> predicted_ttft;  // seconds, where something is known
  double price = 0;                      // Prediction::price
  double try_seconds = 0;  // of one that explores: by how much it is expected after the best plan
  // Of a plan that explores: after so many seconds the prompt is also prefilled here; after so many the handoff
  // goes to another target instead.
  std::optional<double> hedge_after;
  struct Move {
    double after = 0;
    size_t target = 0;
  };
  std::optional<Move> move;

  bool remote() const { return kind == PlanKind::kRemote; }
  // Frames come, from a prefill server or from this server's own store.
  bool framed() const { return kind == PlanKind::kRemote || kind == PlanKind::kStored; }
};

}  // namespace aludel
