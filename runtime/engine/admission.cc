#include "runtime/engine/admission.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {

absl::Status Admission::Admit(uint64_t request, const RequestSize& size) {
  if (sequences_ + size.choices > max_num_seqs_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d sequences are admitted already and this request needs %d, the limit is %d",
                        sequences_, size.choices, max_num_seqs_));
  }
  Claim claim{.choices = size.choices};
  const int64_t first = size.prompt_tokens + std::min(size.max_completion, kFirstStretch);
  // Only full blocks are shared for good; each choice needs its own copy of the one that it goes on writing.
  claim.shared_blocks = size.choices > 1 ? size.prompt_tokens / layout_.block_tokens : 0;
  claim.choice_blocks = layout_.BlocksFor(first) - claim.shared_blocks;
  claim.kept_shared = size.handed_over / layout_.block_tokens;
  claim.kept_choice = layout_.BlocksFor(size.handed_over) - claim.kept_shared;
  const int64_t whole = layout_.BlocksFor(size.prompt_tokens + size.max_completion);
  claim.last_blocks = whole - claim.kept_shared;
  if (const int64_t alone = std::max(claim.promised(), whole); alone > layout_.blocks) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%d tokens and %d choices of up to %d need %d KV blocks, this server has %d",
                        size.prompt_tokens, size.choices, size.max_completion, alone, layout_.blocks));
  }
  if (promised_blocks_ + claim.promised() > layout_.blocks) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d tokens and the first of %d choices need %d KV blocks, %d of %d are free", size.prompt_tokens,
        size.choices, claim.promised(), layout_.blocks - promised_blocks_, layout_.blocks));
  }
  int64_t last_blocks = claim.last_blocks;
  for (const auto& [id, other] : claims_) last_blocks = std::max(last_blocks, other.last_blocks);
  if (kept_blocks_ + claim.kept() + last_blocks > layout_.blocks) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the longest answer may need %d KV blocks beside %d that are handed over, of %d",
                        last_blocks, kept_blocks_ + claim.kept(), layout_.blocks));
  }
  sequences_ += size.choices;
  promised_blocks_ += claim.promised();
  kept_blocks_ += claim.kept();
  ALUDEL_CHECK(claims_.emplace(request, claim).second);
  return absl::OkStatus();
}

void Admission::End(uint64_t request, int choices) {
  const auto found = claims_.find(request);
  ALUDEL_CHECK(found != claims_.end() && found->second.choices >= choices);
  Claim& claim = found->second;
  promised_blocks_ -= claim.promised();
  kept_blocks_ -= claim.kept();
  sequences_ -= choices;
  claim.choices -= choices;
  if (claim.choices == 0) {
    claims_.erase(found);
    return;
  }
  promised_blocks_ += claim.promised();
  kept_blocks_ += claim.kept();
}

void Admission::FallBack(uint64_t request) {
  const auto found = claims_.find(request);
  ALUDEL_CHECK(found != claims_.end());
  Claim& claim = found->second;
  kept_blocks_ -= claim.kept();
  claim.last_blocks += claim.kept_shared;
  claim.kept_shared = 0;
  claim.kept_choice = 0;
}

}  // namespace aludel
