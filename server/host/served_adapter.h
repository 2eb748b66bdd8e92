#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "runtime/codec/codec.h"
#include "runtime/model/adapters/lora_weights.h"
#include "server/host/adapter_codecs.h"

namespace aludel {

// Whose cache an adapter was trained to answer from; nothing in its files says so.
enum class CacheOf : uint8_t {
  kAdapter,     // its own
  kBase,        // its base's of the prompt, and its own of the answer (PrefillShare, 2026)
  kBaseAlways,  // its base's of prompt and answer: it has no updates of keys and values (ICaRus, 2026)
};

// By its name in settings and requests, "adapter", "base" or "base_always"; InvalidArgument for another.
absl::StatusOr<CacheOf> ReadCacheOf(absl::string_view name);
// ReadCacheOf's name of it.
absl::string_view Name(CacheOf cache);

// An adapter on the device beside its base, with the decoders that codes become its cache by. Immutable but for those,
// which change with the base's artifact. Thread-safe.
class ServedAdapter {
 public:
  // As LoraWeights::Load; Aborted where the files change meanwhile. `codecs` must outlive the call, what it opens from
  // must outlive the adapter.
  static absl::StatusOr<std::unique_ptr<ServedAdapter>> Load(Device* device, const std::string& directory,
                                                             const LoraWeights::Base& base,
                                                             const AdapterCodecs& codecs,
                                                             CacheOf cache = CacheOf::kAdapter);
  // What its files say of an adapter.
  struct Identity {
    std::string hash;        // as hash()
    bool activated = false;  // as activated()
  };
  // Reads the files once. As LoraWeights::Check; InvalidArgument, too, for an adapter that is not of this kind: for an
  // activated one of other than kAdapter, as its files say from where on it acts, and of kBaseAlways for one that updates
  // keys or values.
  static absl::StatusOr<Identity> Check(const std::string& directory, const LoraWeights::Base& base,
                                        CacheOf cache);

  const LoraWeights& weights() const { return *weights_; }
  const std::string& hash() const { return weights_->hash(); }
  // It goes on from its base's cache of a part of the prompt at least.
  bool activated() const { return cache_ != CacheOf::kAdapter || !invocation_.empty(); }
  // GenerateSpec::adapter_reads_only.
  bool reads_only() const { return cache_ == CacheOf::kBaseAlways; }
  // Whether a prompt's tokens can be scored: over its base's cache of the prompt it has no say in them.
  bool scores_prompts() const { return cache_ != CacheOf::kBase; }
  // The token of `prompt` from which on the cache is its own: the first; of kBase the last, of kBaseAlways the one behind
  // that; of an activated adapter the one that the last occurrence of its invocation begins with. Nothing where that does
  // not occur: the base alone answers.
  std::optional<int64_t> ActsFrom(absl::Span<const int32_t> prompt) const;
  // Its decoders, never null; without any its prompts can only be prefilled where they are decoded. Who uses one holds them.
  std::shared_ptr<const AdapterCodecs::Opened> codecs() const {
    absl::MutexLock lock(&mutex_);
    return codecs_;
  }
  // Opens those of another artifact in their place. Returns the old ones, which may be in use. Null: it takes none.
  std::shared_ptr<const AdapterCodecs::Opened> Follow(const AdapterCodecs& codecs) const;

 private:
  ServedAdapter(std::unique_ptr<LoraWeights> weights, std::vector<int32_t> invocation, CacheOf cache,
                AdapterCodecs::Opened codecs)
      : weights_(std::move(weights)),
        invocation_(std::move(invocation)),
        cache_(cache),
        codecs_(std::make_shared<const AdapterCodecs::Opened>(std::move(codecs))) {}

  const std::unique_ptr<LoraWeights> weights_;
  const std::vector<int32_t> invocation_;  // empty: it acts on every token
  const CacheOf cache_;
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const AdapterCodecs::Opened> codecs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
