#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_options.h"
#include "runtime/engine/sequence.h"
#include "runtime/model/model_config.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// Turns what callers ask for into sequences, or into an InvalidArgument that holds what was found and what is
// allowed (FailedPrecondition: by the settings of this engine). Immutable and thread-safe.
class RequestReader {
 public:
  // `tokenizer` must outlive the reader and its sequences.
  RequestReader(const ModelConfig& model, const EngineOptions& options, const Tokenizer* tokenizer)
      : vocab_(model.vocab), eos_ids_(model.eos_ids), options_(options), tokenizer_(tokenizer) {}

  // The sequence of choice 0; the others leave it when the prompt is computed.
  absl::StatusOr<std::unique_ptr<Sequence>> ReadGenerate(GenerateSpec spec,
                                                         std::shared_ptr<SequenceListener> listener) const;
  absl::StatusOr<std::unique_ptr<Sequence>> ReadPrefill(PrefillSpec spec,
                                                        std::shared_ptr<SequenceListener> listener) const;

 private:
  absl::Status CheckPrompt(const std::vector<int32_t>& prompt) const;
  absl::Status CheckSampling(const SamplingParams& sampling) const;

  // Of min_tokens, allowed_ids and bad_words; null where they rule nothing out. InvalidArgument where they leave no
  // first token.
  absl::StatusOr<std::shared_ptr<const TokenRuleSet>> MakeRules(bool constrained,
                                                                const SamplingParams& sampling) const;

  const int64_t vocab_;
  const std::vector<int> eos_ids_;
  const EngineOptions options_;
  const Tokenizer* const tokenizer_;
};

}  // namespace aludel
