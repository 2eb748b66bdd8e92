#include "runtime/codec/handoff.h"

#include <algorithm>

#include "runtime/status_macros.h"

namespace aludel {

absl::Status RunTokens(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                       absl::Span<const int32_t> ids, int64_t begin, int64_t end, LayerObserver* observer,
                       std::vector<float>* logits, const LoraWeights* adapter) {
  std::vector<float> ignored;
  for (int64_t at = begin; at < end; at += model.options().max_rows) {
    const int64_t count = std::min(model.options().max_rows, end - at);
    BatchItem item;
    item.ids = ids.subspan(at, count);
    item.position = at;
    item.blocks = blocks;
    item.wants_logits = logits != nullptr && at + count == end;
    item.observer = observer;
    item.adapter = adapter;
    ALUDEL_RETURN_IF_ERROR(
        model.Forward(absl::MakeSpan(&item, 1), pool, item.wants_logits ? logits : &ignored));
    ALUDEL_RETURN_IF_ERROR(item.observer_status);
  }
  return absl::OkStatus();
}

TokenRange HandedOver(const CodecSpec& codec, int64_t prompt_tokens) {
  const int64_t end = prompt_tokens - 1 - codec.recomputed_tail_tokens;
  if (end <= codec.recomputed_head_tokens) return {};
  return {codec.recomputed_head_tokens, end};
}

absl::Status BeginHandoff(KvDecoder& decoder, const KvTarget& target) {
  ALUDEL_RETURN_IF_ERROR(decoder.Begin(target));
  return RunTokens(*target.model, *target.pool, target.blocks, target.prompt, 0, target.begin, nullptr,
                   nullptr, target.adapter);
}

}  // namespace aludel
