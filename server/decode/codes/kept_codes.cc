#include "server/decode/codes/kept_codes.h"

#include <utility>

namespace aludel {
namespace {

// Of the store's memory, what handoffs under way may hold beside it.
constexpr size_t kCollectorShare = 4;

bool IsKept(const CodecSpec& codec) { return !codec.artifact_hash.empty(); }

WorkflowStep StepOf(const v1::Workflow& workflow) {
  return {workflow.id(), workflow.agent(), {workflow.next().begin(), workflow.next().end()}};
}

}  // namespace

KeptCodes::KeptCodes(PrefixStore* store, size_t memory_bytes,
                     std::function<double()> prefill_tokens_per_second)
    : store_(store), prefill_tokens_per_second_(std::move(prefill_tokens_per_second)) {
  room_.limit = memory_bytes / kCollectorShare;
}

int64_t KeptCodes::Tokens(const CodecSpec& codec, absl::string_view salt,
                          absl::Span<const int32_t> prompt) const {
  if (!IsKept(codec)) return 0;
  return store_->Findable(prompt, store_->Begin(codec, salt));
}

std::unique_ptr<FrameCollector> KeptCodes::Collect(std::shared_ptr<const CodecSpec> codec,
                                                   absl::string_view salt) {
  if (!IsKept(*codec) || !store_->enabled()) return nullptr;
  const StorePosition begin = store_->Begin(*codec, salt);
  return std::make_unique<FrameCollector>(store_, &room_, std::move(codec), begin);
}

void KeptCodes::Expect(const v1::Workflow& workflow, absl::string_view salt) const {
  store_->Expect(StepOf(workflow), SaltTag(salt));
}

void KeptCodes::Remember(const v1::Workflow& workflow, const CodecSpec& codec, absl::string_view salt,
                         absl::Span<const int32_t> prompt) const {
  if (!IsKept(codec)) return;
  StorePosition end = store_->Begin(codec, salt);
  store_->Peek(prompt, &end);
  store_->Remember(StepOf(workflow), end);
}

void KeptCodes::CountMiss(int64_t prompt_tokens) const { store_->CountLookup({}, prompt_tokens); }

}  // namespace aludel
