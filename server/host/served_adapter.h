#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/codec/codec.h"
#include "runtime/model/adapters/lora_weights.h"
#include "server/host/adapter_codecs.h"

namespace aludel {

// An adapter on the device beside its base, with the decoders that codes become its cache by. Immutable and
// thread-safe.
class ServedAdapter {
 public:
  ServedAdapter(std::unique_ptr<LoraWeights> weights, AdapterCodecs::Opened codecs)
      : weights_(std::move(weights)), codecs_(std::move(codecs)) {}

  const LoraWeights& weights() const { return *weights_; }
  const std::string& hash() const { return weights_->hash(); }
  // Wire formats, best first; empty: its prompts can only be prefilled where they are decoded.
  const std::vector<std::unique_ptr<DecoderFactory>>& codecs() const { return codecs_.decoders; }
  // PlannerOptions::losses.
  const std::map<std::string, double>& losses() const { return codecs_.losses; }

 private:
  const std::unique_ptr<LoraWeights> weights_;
  const AdapterCodecs::Opened codecs_;
};

}  // namespace aludel
