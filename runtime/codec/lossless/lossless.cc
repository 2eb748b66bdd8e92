#include "runtime/codec/lossless/lossless.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/lossless/split_planes.h"
#include "runtime/codec/outbox.h"
#include "runtime/codec/raw.h"
#include "runtime/codec/staging_ring.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Numbers of K, or V, of so many tokens.
size_t PlaneNumbers(const Transformer& model, int64_t tokens) {
  return static_cast<size_t>(tokens) * model.config().kv_dim();
}

// K, then V.
size_t CodeRaw(absl::Span<const uint8_t> raw, absl::Span<uint8_t> payload) {
  const absl::Span<const Bf16> numbers(reinterpret_cast<const Bf16*>(raw.data()), raw.size() / sizeof(Bf16));
  const size_t k_bytes = CodeSplit(numbers.first(numbers.size() / 2), payload);
  return k_bytes + CodeSplit(numbers.subspan(numbers.size() / 2), payload.subspan(k_bytes));
}

class LosslessEncoder : public KvEncoder {
 public:
  LosslessEncoder(const Transformer& model, std::unique_ptr<FrameOutbox> outbox)
      : model_(model), outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    const size_t max_bytes = 2 * MaxSplitBytes(PlaneNumbers(model_, slice.tokens()));
    const bool last = slice.layer + 1 == model_.config().layers;
    return EncodeRaw(slice, model_, last, *outbox_, sink, FrameOutbox::Coding{max_bytes, CodeRaw});
  }

 private:
  const Transformer& model_;
  std::unique_ptr<FrameOutbox> outbox_;
};

class LosslessDecoder : public KvDecoder {
 public:
  LosslessDecoder(const Transformer& model, std::unique_ptr<KvDecoder> raw, StagingRing* numbers)
      : model_(model), raw_(std::move(raw)), numbers_(numbers) {}

  absl::Status Begin(const KvTarget& target) override { return raw_->Begin(target); }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(coverage, model_.config().layers, target));
    const size_t plane = PlaneNumbers(model_, coverage.tokens);
    std::vector<uint8_t>& bytes = numbers_->Next(2 * plane * sizeof(Bf16));
    bytes.resize(2 * plane * sizeof(Bf16));
    const absl::Status decoded =
        Decode(payload, absl::MakeSpan(reinterpret_cast<Bf16*>(bytes.data()), 2 * plane));
    if (!decoded.ok()) {
      return absl::DataLossError(
          absl::StrFormat("lossless frame of layer %d: %s", coverage.first_layer, decoded.message()));
    }
    absl::Status applied = raw_->Apply(coverage, bytes, target);
    numbers_->Enqueued();
    return applied;
  }

 private:
  // K and V of a frame.
  static absl::Status Decode(absl::Span<const uint8_t> payload, absl::Span<Bf16> numbers) {
    const size_t plane = numbers.size() / 2;
    ALUDEL_RETURN_IF_ERROR(DecodeSplit(&payload, numbers.first(plane)));
    ALUDEL_RETURN_IF_ERROR(DecodeSplit(&payload, numbers.subspan(plane)));
    if (payload.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrFormat("%d bytes behind V, want none", payload.size()));
  }

  const Transformer& model_;
  const std::unique_ptr<KvDecoder> raw_;
  StagingRing* const numbers_;
};

CodecSpec LosslessSpec(CodecSpec raw, const Transformer& model) {
  raw.name = "lossless";
  raw.kind = FrameKind::kLossless;
  raw.max_frame_bytes = [kv_dim = model.config().kv_dim()](int64_t tokens) {
    return 2 * MaxSplitBytes(static_cast<size_t>(tokens) * kv_dim);
  };
  return raw;
}

class LosslessEncoderFactory : public EncoderFactory {
 public:
  explicit LosslessEncoderFactory(const Transformer& model)
      : EncoderFactory(LosslessSpec(MakeRawEncoders(model)->spec(), model), 0), model_(model) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    const size_t raw_bytes = 2 * PlaneNumbers(model_, model_.options().max_rows) * sizeof(Bf16);
    ALUDEL_ASSIGN_OR_RETURN(auto outbox, FrameOutbox::Create(model_, raw_bytes));
    return std::make_unique<LosslessEncoder>(model_, std::move(outbox));
  }

 private:
  const Transformer& model_;
};

class LosslessDecoderFactory : public DecoderFactory {
 public:
  LosslessDecoderFactory(std::unique_ptr<DecoderFactory> raw, const Transformer& model)
      : DecoderFactory(LosslessSpec(raw->spec(), model), 0),
        raw_(std::move(raw)),
        model_(model),
        numbers_(std::make_unique<StagingRing>(
            model.device(), model.stream(),
            2 * PlaneNumbers(model, model.options().max_rows) * sizeof(Bf16))) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(auto raw, raw_->NewDecoder());
    return std::make_unique<LosslessDecoder>(model_, std::move(raw), numbers_.get());
  }

 private:
  const std::unique_ptr<DecoderFactory> raw_;
  const Transformer& model_;
  const std::unique_ptr<StagingRing> numbers_;  // of all its decoders
};

}  // namespace

std::unique_ptr<EncoderFactory> MakeLosslessEncoders(const Transformer& model) {
  return std::make_unique<LosslessEncoderFactory>(model);
}

std::unique_ptr<DecoderFactory> MakeLosslessDecoders(const Transformer& model) {
  return std::make_unique<LosslessDecoderFactory>(MakeRawDecoders(model), model);
}

}  // namespace aludel
