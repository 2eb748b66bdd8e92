#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/codec/frame.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Where an encoder puts its frames. Implemented by the sender over registered memory, by evaluation and tests
// over plain memory.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Memory for one payload of at most `max_bytes`, valid until its Commit. A device may be copying into several: as many as
  // a forward pass has frames.
  virtual absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) = 0;
  // Ships the first `bytes` of the oldest reservation. The sink completes the header (ticket, epoch,
  // sequence, checksum).
  virtual absl::Status Commit(const FrameCoverage& coverage, size_t bytes) = 0;
  // Encoding has waited this long for a frame's bytes, and so for what the device computes before them.
  // For timing.
  virtual void Waited(double seconds) { static_cast<void>(seconds); }
};

// The producer's half of one handoff. Fed layer by layer, chunk by chunk, in order; a codec over groups of
// layers keeps what it needs until a group is complete. One per handoff; engine thread only.
class KvEncoder {
 public:
  virtual ~KvEncoder() = default;
  virtual absl::Status Encode(const LayerSlice& slice, FrameSink& sink) = 0;
  // As LayerObserver::KvRows.
  virtual TensorView KvRows(int /*layer*/) { return {}; }
};

// The consumer's cache as a decoder sees it: pages to fill, and the model that owns them.
struct KvTarget {
  Transformer* model = nullptr;
  BlockPool* pool = nullptr;
  absl::Span<const BlockId> blocks;      // cover every handed-over token
  absl::Span<const int32_t> prompt;      // token ids, known on both sides at no byte cost
  int64_t tokens = 0;                    // tokens [begin, tokens) are handed over
  int64_t begin = 0;                     // tokens before it the consumer computes itself, exactly
  const LoraWeights* adapter = nullptr;  // over the model, for this sequence; null: none
};

// What a PayloadOpener has made of a payload; the decoders of its factory know what it is.
class OpenedPayload {
 public:
  virtual ~OpenedPayload() = default;
};

// The consumer's half of one handoff. Frames may come in any order; each decodes alone. One per handoff;
// engine thread only. Nothing is written for a frame that fails a check.
class KvDecoder {
 public:
  virtual ~KvDecoder() = default;
  // Computes what this codec leaves to the consumer (recomputed shallow layers), from token 0 on; before the
  // first Apply. The pages of tokens [0, target.begin) may be empty: their K and V in all layers are needed by
  // what attends to the whole prompt, not here.
  virtual absl::Status Begin(const KvTarget& target) = 0;
  // Enqueues the reconstruction of a frame that the caller has verified; `payload` stays until the model's stream has run it.
  // Where frames come in two parts (CodecSpec::base_planes), a second one has its base's layers and tokens and writes their
  // pages again, and no others.
  virtual absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                             const KvTarget& target) = 0;
  // As Apply, of what the opener of this decoder's factory made of the frame's payload; reads it before it returns.
  virtual absl::Status ApplyOpened(const FrameCoverage& /*coverage*/, const OpenedPayload& /*opened*/,
                                   const KvTarget& /*target*/) {
    return absl::UnimplementedError("payloads of this format are not opened");
  }
};

// Decodes payloads as far as that needs neither the model nor the handoff. Thread-safe.
class PayloadOpener {
 public:
  virtual ~PayloadOpener() = default;
  // What ApplyOpened takes little time for. Errors as those of Apply.
  virtual absl::StatusOr<std::unique_ptr<OpenedPayload>> Open(const FrameCoverage& coverage,
                                                              absl::Span<const uint8_t> payload) const = 0;
};

// What both ends of a handoff agree on about a wire format, and what plans and memory are made from: plain
// data, the same wherever the format is opened. `max_frame_bytes` is pure: any thread may call it.
struct CodecSpec {
  std::string name;           // e.g. "raw" or an artifact's "scd"
  std::string artifact_hash;  // of the encoder's side of an artifact, hex; "" for formats that need none
  FrameKind kind = FrameKind::kRaw;
  // Layers that arrive as frames; the decoder makes the others itself. [layers]
  std::vector<bool> shipped_layers;
  // Consumer layers that the decoder runs by itself over every token, in Begin or as frames arrive.
  int recomputed_layers = 0;
  // Recomputed tokens, which never travel. The consumer computes a prompt's first `head` tokens itself
  // (attention sinks; they depend on nothing that travels), and its last `tail` + 1 tokens over the
  // reconstructed cache: tokens [head, prompt - 1 - tail) are handed over.
  int64_t recomputed_head_tokens = 0;
  int64_t recomputed_tail_tokens = 0;
  // Bound on the payload of one frame over `tokens` tokens.
  std::function<size_t(int64_t tokens)> max_frame_bytes;
  std::string decoder_hash =
      {};  // of the decoder's side of an artifact, hex; "" on the encoder's, and where there is none
  // Formats "NAME@N+": N. Every frame comes in two parts, its first N planes before the prompt's cache counts as complete, and
  // the planes that follow when all frames have come so far (FORMAT.md, kind aludel). 0: in one.
  int base_planes = 0;
};

// One side of a wire format: what the encoders, or the decoders, of all handoffs share. Thread-safe; must
// outlive what it made, which shares its working memory: only the thread that runs its model's forward passes
// may use that.
class CodecSide {
 public:
  virtual ~CodecSide() = default;
  const CodecSpec& spec() const { return spec_; }
  // Floating-point operations per token on this side, recomputed layers not counted.
  double flops_per_token() const { return flops_per_token_; }

 protected:
  CodecSide(CodecSpec spec, double flops_per_token)
      : spec_(std::move(spec)), flops_per_token_(flops_per_token) {}

  CodecSpec spec_;

 private:
  const double flops_per_token_;
};

// The producer's side.
class EncoderFactory : public CodecSide {
 public:
  // Allocates memory but enqueues no work: any thread may call it while the model computes.
  virtual absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const = 0;

 protected:
  using CodecSide::CodecSide;
};

// The consumer's side.
class DecoderFactory : public CodecSide {
 public:
  // As NewEncoder.
  virtual absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const = 0;
  // Of formats whose payloads take so long to decode that it should not hold up the engine's thread. Null: none.
  virtual const PayloadOpener* opener() const { return nullptr; }
  // Once, before others see it.
  void SetDecoderHash(std::string hash) { spec_.decoder_hash = std::move(hash); }

 protected:
  using CodecSide::CodecSide;
};

}  // namespace aludel
