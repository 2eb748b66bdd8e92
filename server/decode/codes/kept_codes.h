#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/codec/codec.h"
#include "server/decode/codes/frame_collector.h"
#include "server/store/prefix_store.h"

namespace aludel {

// What a decode server keeps of the codes that it has received, so that a prompt that begins like an earlier one needs no
// prefill server: a PrefixStore with the frames as they came. Only formats with an artifact are kept: its hash names the
// encoder and the model that it was fitted to, so that no code is applied that another one made; of "raw" and its like
// nothing says whose cache they are. Thread-safe; calls block for a lock only.
class KeptCodes {
 public:
  // The store must outlive it.
  KeptCodes(PrefixStore* store, size_t memory_bytes, std::function<double()> prefill_tokens_per_second);

  // Tokens of the prompt, from its start, that are kept in this format for this tenant's salt, and would be read now. Hashes
  // what it finds, and does not count as a use.
  int64_t Tokens(const CodecSpec& codec, absl::string_view salt, absl::Span<const int32_t> prompt) const;
  // For a handoff that is about to begin; null where nothing of it can be kept.
  std::unique_ptr<FrameCollector> Collect(std::shared_ptr<const CodecSpec> codec, absl::string_view salt);
  // Of workflows of agents, as a prefill server does with its own store (PrefixStore::Expect, Remember): a handoff of this step
  // begins; and one of this prompt is complete, and was kept as far as it will be. The latter hashes the prompt.
  void Expect(const v1::Workflow& workflow, absl::string_view salt) const;
  void Remember(const v1::Workflow& workflow, const CodecSpec& codec, absl::string_view salt,
                absl::Span<const int32_t> prompt) const;
  // Nothing of a prompt was of use, which is handed over.
  void CountMiss(int64_t prompt_tokens) const;

  PrefixStore& store() const { return *store_; }
  // Of computing here; 0: not known.
  double prefill_tokens_per_second() const { return prefill_tokens_per_second_(); }

 private:
  PrefixStore* const store_;
  const std::function<double()> prefill_tokens_per_second_;
  CollectorRoom room_;
};

}  // namespace aludel
