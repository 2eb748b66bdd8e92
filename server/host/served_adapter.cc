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
                                                                   const AdapterCodecs& codecs) {
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<LoraWeights> weights, LoraWeights::Load(device, directory, base));
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  // What was opened a second time is what the weights came from.
  if (HashAdapted(*adapter, base.hash) != weights->hash()) {
    return absl::AbortedError(absl::StrCat(directory, " has changed while it was read"));
  }
  AdapterCodecs::Opened opened = codecs.Open(weights->hash());
  return std::unique_ptr<ServedAdapter>(
      new ServedAdapter(std::move(weights), adapter->config().invocation(), std::move(opened)));
}

std::optional<int64_t> ServedAdapter::ActsFrom(absl::Span<const int32_t> prompt) const {
  if (invocation_.empty()) return 0;
  const auto* found = std::find_end(prompt.begin(), prompt.end(), invocation_.begin(), invocation_.end());
  if (found == prompt.end()) return std::nullopt;
  return found - prompt.begin();
}

}  // namespace aludel
