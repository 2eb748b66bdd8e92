#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"

namespace aludel {

// Computes tokens [begin, end) of `ids` into `blocks`, in steps of the model's max_rows. `observer` may be
// null, and so may `adapter`. With `logits`, those of token end - 1 come back.
absl::Status RunTokens(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                       absl::Span<const int32_t> ids, int64_t begin, int64_t end, LayerObserver* observer,
                       std::vector<float>* logits, const LoraWeights* adapter = nullptr);

// Which tokens of a prompt travel: [begin, end), both 0 where the recomputed tokens leave nothing.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t tokens() const { return end - begin; }
};
TokenRange HandedOver(const CodecSpec& codec, int64_t prompt_tokens);

// What a consumer does before the first frame: it lets the decoder begin, and computes its recomputed head
// tokens. (An engine computes these later, in the pass of the prompt's end: engine_step.h.)
absl::Status BeginHandoff(KvDecoder& decoder, const KvTarget& target);

}  // namespace aludel
