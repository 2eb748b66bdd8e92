#include "server/host/served_adapter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/weights/weight_stream.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Whether the adapter is one of this kind.
absl::Status CheckKind(const LoraAdapter& adapter, CacheOf cache, int layers) {
  if (cache == CacheOf::kAdapter) return absl::OkStatus();
  if (!adapter.config().invocation().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(adapter.directory(),
                     " has alora_invocation_tokens, which say from where on it acts: "
                     "cache_of is its base, want \"adapter\""));
  }
  if (cache == CacheOf::kBase) return absl::OkStatus();
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* projection : {"k_proj", "v_proj"}) {
      const std::string module = absl::StrCat("model.layers.", layer, ".self_attn.", projection);
      ALUDEL_ASSIGN_OR_RETURN(const bool updated, adapter.config().Targets(module));
      if (!updated) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(adapter.directory(), " updates ", module,
                       ", and so the cache: cache_of is \"base_always\", want \"base\" or \"adapter\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CacheOf> ReadCacheOf(absl::string_view name) {
  if (name == "adapter") return CacheOf::kAdapter;
  if (name == "base") return CacheOf::kBase;
  if (name == "base_always") return CacheOf::kBaseAlways;
  return absl::InvalidArgumentError("cache_of is none of \"adapter\", \"base\" and \"base_always\"");
}

absl::string_view Name(CacheOf cache) {
  switch (cache) {
    case CacheOf::kAdapter:
      return "adapter";
    case CacheOf::kBase:
      return "base";
    case CacheOf::kBaseAlways:
      return "base_always";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<ServedAdapter>> ServedAdapter::Load(Device* device,
                                                                   const std::string& directory,
                                                                   const LoraWeights::Base& base,
                                                                   const AdapterCodecs& codecs,
                                                                   CacheOf cache) {
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<LoraWeights> weights, LoraWeights::Load(device, directory, base));
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  ALUDEL_RETURN_IF_ERROR(CheckKind(*adapter, cache, base.config.layers));
  // What was opened a second time is what the weights came from.
  if (HashAdapted(*adapter, base.hash) != weights->hash()) {
    return absl::AbortedError(absl::StrCat(directory, " has changed while it was read"));
  }
  AdapterCodecs::Opened opened;
  if (cache == CacheOf::kAdapter) opened = codecs.Open(weights->hash());
  return std::unique_ptr<ServedAdapter>(
      new ServedAdapter(std::move(weights), adapter->config().invocation(), cache, std::move(opened)));
}

absl::StatusOr<ServedAdapter::Identity> ServedAdapter::Check(const std::string& directory,
                                                             const LoraWeights::Base& base, CacheOf cache) {
  ALUDEL_RETURN_IF_ERROR(LoraWeights::Check(directory, base));
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  ALUDEL_RETURN_IF_ERROR(CheckKind(*adapter, cache, base.config.layers));
  return Identity{.hash = HashAdapted(*adapter, base.hash),
                  .activated = cache != CacheOf::kAdapter || !adapter->config().invocation().empty()};
}

std::shared_ptr<const AdapterCodecs::Opened> ServedAdapter::Follow(const AdapterCodecs& codecs) const {
  if (cache_ != CacheOf::kAdapter) return nullptr;
  auto opened = std::make_shared<const AdapterCodecs::Opened>(codecs.Open(hash()));
  absl::MutexLock lock(&mutex_);
  return std::exchange(codecs_, std::move(opened));
}

std::optional<int64_t> ServedAdapter::ActsFrom(absl::Span<const int32_t> prompt) const {
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (cache_ == CacheOf::kBaseAlways) return tokens;
  if (cache_ == CacheOf::kBase) return std::max<int64_t>(0, tokens - 1);
  if (invocation_.empty()) return 0;
  const auto* found = std::find_end(prompt.begin(), prompt.end(), invocation_.begin(), invocation_.end());
  if (found == prompt.end()) return std::nullopt;
  return found - prompt.begin();
}

}  // namespace aludel
