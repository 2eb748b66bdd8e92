#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/codec.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/questions.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// One handoff format between the two models; a control has no encoder.
struct FormatUnderTest {
  std::string name;
  std::unique_ptr<EncoderFactory> encoder;  // null: a control
  std::unique_ptr<DecoderFactory> decoder;
  const ArtifactFormat* format = nullptr;  // of the pair's manifest(); null: not of an artifact
};

// What one format's encoder made of a prompt.
struct EncodedPrompt {
  std::vector<WireFrame> frames;
  double bytes = 0;
  double seconds = 0;
};

// The two models of an evaluation, their caches, and the formats between them. One thread.
class PairUnderTest {
 public:
  // Errors name the flag or file of `job`.
  static absl::StatusOr<std::unique_ptr<PairUnderTest>> Load(const EvaluateJob& job, Device* device);

  Transformer& producer() { return *producer_; }
  Transformer& consumer() { return *consumer_; }
  // The consumer, or the same model with its weights not rounded; over oracle_pool() either way.
  Transformer& oracle() { return oracle_ == nullptr ? *consumer_ : *oracle_; }
  BlockPool& oracle_pool() { return *oracle_pool_; }
  // What formats fill: EvaluateJob::kv_dtype. The oracle's where that is of the same type.
  BlockPool& tested_pool() { return tested_pool_ == nullptr ? *oracle_pool_ : *tested_pool_; }
  const PromptWriter& writer() const { return *writer_; }
  const ArtifactManifest& manifest() const { return manifest_; }
  const std::vector<FormatUnderTest>& formats() const { return formats_; }

  // The consumer's blocks for one prompt, of either pool; the same ones where the pools are.
  struct Tables {
    BlockTable oracle, tested;
  };
  absl::StatusOr<Tables> Reserve(int64_t tokens);

  // Encodes tokens [0, tokens) of `ids` once for every format that ships anything. [formats]
  absl::StatusOr<std::vector<EncodedPrompt>> EncodeAll(absl::Span<const int32_t> ids, int64_t tokens);
  // Fills the cache under test with tokens [0, tokens), recomputed ones included, in the blocks of `table`.
  // Seconds of everything but the tail.
  absl::StatusOr<double> Reconstruct(const FormatUnderTest& format, const std::vector<WireFrame>& frames,
                                     absl::Span<const int32_t> ids, int64_t tokens, const BlockTable& table);

 private:
  PairUnderTest() = default;
  absl::Status OpenFormats(const EvaluateJob& job);

  std::unique_ptr<Transformer> producer_, consumer_, oracle_;
  std::unique_ptr<BlockPool> producer_pool_, oracle_pool_, tested_pool_;
  std::unique_ptr<PromptWriter> writer_;
  ArtifactManifest manifest_;
  std::vector<FormatUnderTest> formats_;
};

}  // namespace aludel
