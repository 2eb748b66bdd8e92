#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "aludel/v1/handoff.pb.h"
#include "kernels/pinned_memory.h"
#include "runtime/codec/codec.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/model/transformer.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/config/model_options.h"
#include "server/host/adapter_pool.h"
#include "server/host/codec_sets.h"
#include "server/host/warm_up.h"
#include "server/rpc/handoff_version.h"
#include "transport/transport.h"

namespace aludel {

// A model made ready to serve: device, weights, tokenizer, wire formats and the engine over them, destroyed
// in the reverse of this order. A server has a PrefillHost or a DecodeHost, with its own side of each format.
class ModelHost {
 public:
  virtual ~ModelHost() = default;

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const ModelConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Adapters over this model, none known yet, with the decoders that `codecs` has for them. Must be gone before
  // this is, and the engine stopped before that.
  std::unique_ptr<AdapterPool> MakeAdapterPool(const std::string& directory, AdapterCodecs codecs,
                                               int max_resident) const;
  // The decoders that an artifact has for adapters over this model.
  absl::StatusOr<AdapterCodecs> MakeAdapterCodecs(const CodecOptions& codecs) const {
    return AdapterCodecs::Create(codecs, model_.get());
  }
  // What prefill took when the model was warmed up.
  const std::vector<PrefillSample>& prefill_samples() const { return prefill_samples_; }
  // How this model is identified to peers.
  v1::ModelIdentity Identity() const;
  // DecodeDescription.numerics.
  std::string Numerics() const;
  // How the device keeps the weights, for names of what numbers depend on.
  std::string WeightsText() const;
  // The engine's. Logs why steps are not captured as graphs, once for each reason.
  EngineStats Stats();
  // For how long the engine's thread has run no layer, nor looked up while idle. To be asked regularly: progress
  // inside a step is seen from one call to the next.
  absl::Duration EngineSilence();

  // Bound on the bytes of all frames of a handoff of `tokens` tokens, however the producer cuts its chunks
  // (within reason: a producer that cuts finer than a quarter of our chunk, at most 64 tokens, runs out of room and the prompt
  // is prefilled where it is decoded).
  size_t HandoffBytesBound(const CodecSpec& codec, int64_t tokens) const;
  // Bound on what one step of the producer's engine adds to a window (FrameRing::Weight), and on one frame
  // of it.
  size_t StepBytesBound(const CodecSpec& codec) const;
  size_t StepFrameBound(const CodecSpec& codec) const;
  // Of a prompt's tokens in one step so that they add at most `credit`: the engine's own step, where that is too large half of
  // it, and so on. Nothing where 64 tokens, or the engine's fewer, are too many.
  std::optional<int64_t> StepTokens(const CodecSpec& codec, size_t credit) const;
  // Of a step of so many tokens, as StepBytesBound.
  size_t StepBytesBound(const CodecSpec& codec, int64_t tokens) const;
  // Frame memory of one handoff: room for all frames where that is at most `window`, else room for a few
  // steps at once.
  size_t HandoffWindow(const CodecSpec& codec, int64_t tokens, size_t window) const;
  // Pins this memory while the result lives, which makes copies between device and frames fast, and logs the
  // path that frames take.
  std::unique_ptr<PinnedMemory> PinFrames(absl::Span<uint8_t> frames, const Transport& transport);
  // Stops the engine: every sequence ends with Unavailable. Call it before anything that its listeners use
  // is destroyed.
  void StopEngine() { engine_.reset(); }

 protected:
  // Opens this server's side of one format.
  using OpenFormat = absl::FunctionRef<absl::Status(const std::string& format, const Transformer& model)>;

  ModelHost() = default;
  // Once, before anything else. `open` opens the codecs, when the model is there.
  absl::Status Load(const ModelOptions& options, const CodecOptions& codec_options,
                    absl::FunctionRef<absl::Status()> open, const LoadProgress& progress);
  // Each format that the options name, or else that the artifact has.
  absl::Status OpenFormats(const CodecOptions& options, OpenFormat open) const;

 private:
  std::string instructions_;  // as they were asked for
  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<PrefillSample> prefill_samples_;
  std::unique_ptr<Engine> engine_;
  absl::Mutex mutex_;
  std::string logged_eager_reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t layers_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point layers_moved_ ABSL_GUARDED_BY(mutex_);
};

// `Factory` is EncoderFactory or DecoderFactory.
template <typename Factory>
class CodecHost final : public ModelHost {
 public:
  // `progress` hears of the weights' loading.
  static absl::StatusOr<std::unique_ptr<CodecHost>> Load(const ModelOptions& options,
                                                         const CodecOptions& codec_options,
                                                         const LoadProgress& progress = nullptr);
  // The engine's sequences use the codecs.
  ~CodecHost() override { StopEngine(); }

  CodecSets<Factory>& sets() { return *sets_; }
  const CodecSets<Factory>& sets() const { return *sets_; }
  // Of the current set.
  std::shared_ptr<const CodecSet<Factory>> codecs() const { return sets_->current(); }

  // Opens what the artifact's location leads to by now, beside what there is; any thread may call it while the model
  // computes. The one of an offered set is not read again. Of another, every file of both sides is read and held against
  // its hash: an error names what is wrong, or which model the artifact is for.
  absl::StatusOr<std::shared_ptr<const CodecSet<Factory>>> OpenNext(const CodecOptions& options) const;

 private:
  CodecHost() = default;

  absl::StatusOr<std::shared_ptr<const CodecSet<Factory>>> OpenSet(const CodecOptions& options) const;

  std::unique_ptr<CodecSets<Factory>> sets_;
};

// A prefill server has no decoders, and a decode server no encoders.
using PrefillHost = CodecHost<EncoderFactory>;
using DecodeHost = CodecHost<DecoderFactory>;
extern template class CodecHost<EncoderFactory>;
extern template class CodecHost<DecoderFactory>;

}  // namespace aludel
