#include "server/bench/route/sim_cost_flags.h"

#include <limits>

namespace aludel {

void SimCostFlags::Declare(FlagSet* flags) {
  flags->Add("step-s", "N", &costs.step, "of each step of a server");
  flags->Add("token-s", "N", &costs.per_token, "of a token of prefill");
  flags->Add("pair-s", "N", &costs.per_pair, "of a token of prefill and one before it");
  flags->Add("sequence-s", "N", &costs.per_sequence, "of a sequence that decodes, in a step");
  flags->Add("chunk-tokens", "N", &costs.chunk_tokens, "of prefill in a step");
  flags->Add("max-num-seqs", "N", &max_sequences, "that a server takes at once");
  flags->Add("cache-tokens", "N", &costs.cache_tokens, "that a server's prefix cache holds");
}

absl::StatusOr<SimCosts> SimCostFlags::Checked() const {
  if (!(costs.step > 0) || !(costs.per_token >= 0) || !(costs.per_pair >= 0) || !(costs.per_sequence >= 0)) {
    return absl::InvalidArgumentError(
        "want --step-s above 0, and no negative --token-s, --pair-s or --sequence-s");
  }
  if (costs.chunk_tokens < 1 || max_sequences < 1 || max_sequences > std::numeric_limits<int>::max() ||
      costs.cache_tokens < 0) {
    return absl::InvalidArgumentError(
        "want --chunk-tokens and --max-num-seqs of at least 1, and no negative --cache-tokens");
  }
  SimCosts checked = costs;
  checked.max_sequences = static_cast<int>(max_sequences);
  return checked;
}

}  // namespace aludel
