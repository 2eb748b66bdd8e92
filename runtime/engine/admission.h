#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "runtime/kv/kv_layout.h"

namespace aludel {

// What one request will ask of the cache.
struct RequestSize {
  int64_t prompt_tokens = 0;
  int64_t max_completion = 0;
  int64_t handed_over = 0;  // tokens that come over the wire, from the prompt's start
  int choices = 1;
};

// Decides which requests are admitted. Blocks are promised for the prompt and a first stretch of every
// answer; what answers take beyond that is shared by preemption. Handed-over tokens cannot be computed again,
// so they stay, and the ledger keeps so much room beside all of them that any one choice can run to its end
// alone: with that, the first in rank always can, and every admitted request ends. Not thread-safe.
class Admission {
 public:
  // `layout` must outlive the ledger.
  Admission(const KvLayout& layout, int64_t max_num_seqs) : layout_(layout), max_num_seqs_(max_num_seqs) {}

  // ResourceExhausted with the arithmetic where it does not fit now, FailedPrecondition where it never will.
  absl::Status Admit(uint64_t request, const RequestSize& size);
  // Some choices of an admitted request have ended; with the last one it is forgotten.
  void End(uint64_t request, int choices);
  // The handoff of this request has failed: its prompt will be computed here.
  void FallBack(uint64_t request);

  int64_t promised_blocks() const { return promised_blocks_; }

 private:
  struct Claim {
    int choices = 1;            // that have not ended
    int64_t shared_blocks = 0;  // of the prompt, held once for all choices
    int64_t choice_blocks = 0;  // of each choice beside them: the prompt's last block, a first stretch
    int64_t kept_shared = 0;    // handed over, in full blocks
    int64_t kept_choice = 0;    // 1: each choice holds a partly handed-over block of its own
    int64_t last_blocks = 0;    // of one choice at its end, the kept ones not counted

    int64_t promised() const { return shared_blocks + choices * choice_blocks; }
    int64_t kept() const { return kept_shared + choices * kept_choice; }
  };
  static constexpr int64_t kFirstStretch = 32;  // tokens

  const KvLayout& layout_;
  const int64_t max_num_seqs_;
  std::map<uint64_t, Claim> claims_;
  int64_t sequences_ = 0;
  int64_t promised_blocks_ = 0;
  int64_t kept_blocks_ = 0;
};

}  // namespace aludel
