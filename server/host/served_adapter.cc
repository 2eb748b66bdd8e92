#include "server/host/served_adapter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/weights/weight_stream.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<ServedAdapter>> ServedAdapter::Load(Device* device,
                                                                   const std::string& directory,
                                                                   const LoraWeights::Base& base,
                                                                   const AdapterCodecs& codecs,
                                                                   PromptCache cache) {
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<LoraWeights> weights, LoraWeights::Load(device, directory, base));
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  // What was opened a second time is what the weights came from.
  if (HashAdapted(*adapter, base.hash) != weights->hash()) {
    return absl::AbortedError(absl::StrCat(directory, " has changed while it was read"));
  }
  AdapterCodecs::Opened opened;
  if (cache == PromptCache::kOwn) opened = codecs.Open(weights->hash());
  return std::unique_ptr<ServedAdapter>(
      new ServedAdapter(std::move(weights), adapter->config().invocation(), cache, std::move(opened)));
}

absl::Status ServedAdapter::Check(const std::string& directory, const LoraWeights::Base& base,
                                  PromptCache cache) {
  ALUDEL_RETURN_IF_ERROR(LoraWeights::Check(directory, base));
  if (cache == PromptCache::kOwn) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  if (adapter->config().invocation().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(directory,
                   " has alora_invocation_tokens, which say from where on it acts: cache_of is "
                   "\"base\", want \"adapter\""));
}

std::optional<int64_t> ServedAdapter::ActsFrom(absl::Span<const int32_t> prompt) const {
  if (cache_ == PromptCache::kBase) return std::max<int64_t>(0, static_cast<int64_t>(prompt.size()) - 1);
  if (invocation_.empty()) return 0;
  const auto* found = std::find_end(prompt.begin(), prompt.end(), invocation_.begin(), invocation_.end());
  if (found == prompt.end()) return std::nullopt;
  return found - prompt.begin();
}

}  // namespace aludel
