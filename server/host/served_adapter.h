#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "runtime/codec/codec.h"
#include "runtime/model/adapters/lora_weights.h"
#include "server/host/adapter_codecs.h"

namespace aludel {

// Whose cache of a prompt an adapter goes on from: that which it makes itself, or its base's, from which it was trained to
// answer (PrefillShare, 2026). Nothing in an adapter's files says so.
enum class PromptCache : uint8_t { kOwn, kBase };

// An adapter on the device beside its base, with the decoders that codes become its cache by. Immutable
// and thread-safe.
class ServedAdapter {
 public:
  // As LoraWeights::Load; Aborted where the files change meanwhile. `codecs` must outlive the call, what it opens from
  // must outlive the adapter.
  static absl::StatusOr<std::unique_ptr<ServedAdapter>> Load(Device* device, const std::string& directory,
                                                             const LoraWeights::Base& base,
                                                             const AdapterCodecs& codecs,
                                                             PromptCache cache = PromptCache::kOwn);
  // As LoraWeights::Check; InvalidArgument, too, for an activated adapter of kBase: its files say from where on it acts.
  static absl::Status Check(const std::string& directory, const LoraWeights::Base& base, PromptCache cache);

  const LoraWeights& weights() const { return *weights_; }
  const std::string& hash() const { return weights_->hash(); }
  // It acts on a part of a prompt alone.
  bool activated() const { return cache_ == PromptCache::kBase || !invocation_.empty(); }
  // The token of `prompt` from which on it acts: the first; of an adapter of kBase the last; of an activated adapter the one
  // that the last occurrence of its invocation begins with. Nothing where that does not occur: the base alone answers.
  std::optional<int64_t> ActsFrom(absl::Span<const int32_t> prompt) const;
  // Wire formats, best first; empty: its prompts can only be prefilled where they are decoded.
  const std::vector<std::unique_ptr<DecoderFactory>>& codecs() const { return codecs_.decoders; }
  // AdapterCodecs::Opened::shared.
  const std::map<std::string, std::string>& shared_decoders() const { return codecs_.shared; }
  // PlannerOptions::losses.
  const std::map<std::string, double>& losses() const { return codecs_.losses; }

 private:
  ServedAdapter(std::unique_ptr<LoraWeights> weights, std::vector<int32_t> invocation, PromptCache cache,
                AdapterCodecs::Opened codecs)
      : weights_(std::move(weights)),
        invocation_(std::move(invocation)),
        cache_(cache),
        codecs_(std::move(codecs)) {}

  const std::unique_ptr<LoraWeights> weights_;
  const std::vector<int32_t> invocation_;  // empty: it acts on every token
  const PromptCache cache_;
  const AdapterCodecs::Opened codecs_;
};

}  // namespace aludel
