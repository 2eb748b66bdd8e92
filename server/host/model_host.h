#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "aludel/v1/handoff.pb.h"
#include "kernels/pinned_memory.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/model/transformer.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/config/model_options.h"
#include "server/host/warm_up.h"
#include "server/rpc/handoff_version.h"
#include "transport/transport.h"

namespace aludel {

// A model made ready to serve: device, weights, tokenizer, wire formats and the engine over them, destroyed
// in the reverse of this order.
class ModelHost {
 public:
  // `side`: which half of each wire format this server needs. `progress` hears of the weights' loading.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Load(const ModelOptions& options,
                                                         const CodecOptions& codec_options, CodecSide side,
                                                         const LoadProgress& progress = nullptr);

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const ModelConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<std::unique_ptr<KvCodec>>& codecs() const { return codecs_; }
  // Null for a format this server does not have.
  const KvCodec* FindCodec(absl::string_view name) const;
  // What prefill took when the model was warmed up.
  const std::vector<PrefillSample>& prefill_samples() const { return prefill_samples_; }
  // How this model is identified to peers.
  v1::ModelIdentity Identity() const;
  // DecodeDescription.numerics.
  std::string Numerics() const;
  // The engine's. Logs why steps are not captured as graphs, once for each reason.
  EngineStats Stats();
  // For how long the engine's thread has run no layer, nor looked up while idle. To be asked regularly: progress
  // inside a step is seen from one call to the next.
  absl::Duration EngineSilence();

  // Bound on the bytes of all frames of a handoff of `tokens` tokens, however the producer cuts its chunks
  // (within reason: a producer that cuts finer than a quarter of our chunk runs out of room and the prompt is
  // prefilled where it is decoded).
  size_t HandoffBytesBound(const KvCodec& codec, int64_t tokens) const;
  // Bound on what one step of the producer's engine adds to a window (FrameRing::Weight), and on one frame
  // of it.
  size_t StepBytesBound(const KvCodec& codec) const;
  size_t StepFrameBound(const KvCodec& codec) const;
  // Frame memory of one handoff: room for all frames where that is at most `window`, else room for a few
  // steps at once.
  size_t HandoffWindow(const KvCodec& codec, int64_t tokens, size_t window) const;
  // Pins this memory while the result lives, which makes copies between device and frames fast, and logs the
  // path that frames take.
  std::unique_ptr<PinnedMemory> PinFrames(absl::Span<uint8_t> frames, const Transport& transport);
  // Stops the engine: every sequence ends with Unavailable. Call it before anything that its listeners use
  // is destroyed.
  void StopEngine() { engine_.reset(); }

 private:
  absl::Status OpenCodecs(const std::vector<std::string>& formats, const CodecOptions& options,
                          CodecSide side);

  std::string instructions_;  // as they were asked for
  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<KvCodec>> codecs_;
  std::vector<PrefillSample> prefill_samples_;
  std::unique_ptr<Engine> engine_;
  absl::Mutex mutex_;
  std::string logged_eager_reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t layers_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point layers_moved_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
