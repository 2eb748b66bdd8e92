#include "runtime/codec/quantized.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/stream_marks.h"
#include "kernels/token_quantizer.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/outbox.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Bytes of K or V of `tokens` tokens: scales (bf16, little-endian), then codes.
size_t PlaneBytes(const TokenQuantizer& quantizer, int64_t tokens) {
  return static_cast<size_t>(tokens) * (sizeof(Bf16) + quantizer.code_bytes());
}

struct BadScale {
  int64_t token;
  char plane;  // K or V
  float value;
};

// The first scale among the bytes of K and V that is none.
std::optional<BadScale> FindBadScale(const TokenQuantizer& quantizer, absl::Span<const uint8_t> bytes,
                                     int64_t tokens) {
  for (int plane = 0; plane < 2; ++plane) {
    const uint8_t* const scales = bytes.data() + plane * PlaneBytes(quantizer, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      const Bf16 scale{static_cast<uint16_t>(scales[2 * t] | scales[2 * t + 1] << 8)};
      if (!TokenQuantizer::ValidScale(scale)) return BadScale{t, plane == 0 ? 'K' : 'V', ToFloat(scale)};
    }
  }
  return std::nullopt;
}

class QuantizedEncoder : public KvEncoder {
 public:
  QuantizedEncoder(const std::string& name, int bits, const TokenQuantizer& quantizer,
                   const Transformer& model, std::unique_ptr<FrameOutbox> outbox)
      : name_(name), bits_(bits), quantizer_(quantizer), model_(model), outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    const int64_t tokens = slice.tokens();
    const int64_t width = quantizer_.width();
    ALUDEL_CHECK(tokens <= model_.options().max_rows && slice.k.cols == width && slice.v.cols == width);
    uint8_t* plane = outbox_->Next();
    const size_t plane_bytes = PlaneBytes(quantizer_, tokens);
    for (const TensorView& x : {slice.k, slice.v}) {
      model_.device()->ops().QuantizeTokens(x, bits_, plane, plane + tokens * sizeof(Bf16), model_.stream());
      plane += plane_bytes;
    }
    const auto check = [this, layer = slice.layer, begin = slice.token_begin,
                        tokens](absl::Span<const uint8_t> bytes) {
      const std::optional<BadScale> bad = FindBadScale(quantizer_, bytes, tokens);
      if (!bad.has_value()) return absl::OkStatus();
      return absl::InternalError(absl::StrFormat("layer %d, token %d: %c holds values that %s cannot scale",
                                                 layer, begin + bad->token, bad->plane, name_));
    };
    const bool last = slice.layer + 1 == model_.config().layers;
    return outbox_->Add(SliceCoverage(slice), 2 * plane_bytes, last, sink, check);
  }

 private:
  const std::string& name_;
  const int bits_;
  const TokenQuantizer& quantizer_;
  const Transformer& model_;
  std::unique_ptr<FrameOutbox> outbox_;
};

class QuantizedDecoder : public KvDecoder {
 public:
  QuantizedDecoder(const std::string& name, int bits, const TokenQuantizer& quantizer,
                   const Transformer& model, Buffer rows, Buffer wire)
      : name_(name),
        bits_(bits),
        quantizer_(quantizer),
        model_(model),
        rows_(std::move(rows)),
        wire_(std::move(wire)) {}

  absl::Status Begin(const KvTarget&) override { return absl::OkStatus(); }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(coverage, model_.config().layers, target));
    ALUDEL_RETURN_IF_ERROR(CheckPayload(coverage, payload));
    Device& device = *model_.device();
    if (wire_.size() < payload.size()) {
      ALUDEL_ASSIGN_OR_RETURN(wire_, device.Allocate(payload.size()));
    }
    device.CopyToDevice(wire_.data(), payload.data(), payload.size(), model_.stream());
    const int64_t max_rows = model_.options().max_rows;
    for (int64_t begin = 0; begin < coverage.tokens; begin += max_rows) {
      const int64_t tokens = std::min<int64_t>(max_rows, coverage.tokens - begin);
      const TensorView k = TensorView::Of(rows_.as<float>(), tokens, quantizer_.width());
      const TensorView v = TensorView::Of(rows_.as<float>() + max_rows * k.cols, tokens, k.cols);
      const uint8_t* const plane = wire_.as<uint8_t>();
      Decode(plane, coverage.tokens, begin, k);
      Decode(plane + PlaneBytes(quantizer_, coverage.tokens), coverage.tokens, begin, v);
      target.model->WriteKv(coverage.first_layer, coverage.token_begin + begin, target.blocks, k, v,
                            *target.pool);
    }
    return Enqueued(device, model_.stream());
  }

 private:
  // Tokens [begin, begin + x.rows) of a plane of `count`.
  void Decode(const uint8_t* plane, int64_t count, int64_t begin, const TensorView& x) {
    const uint8_t* const codes = plane + count * sizeof(Bf16);
    model_.device()->ops().DequantizeTokens(
        plane + begin * sizeof(Bf16), codes + begin * quantizer_.code_bytes(), bits_, x, model_.stream());
  }

  // Length and every scale, before anything is written. Any code is a valid one.
  absl::Status CheckPayload(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) const {
    const size_t want = 2 * PlaneBytes(quantizer_, coverage.tokens);
    if (payload.size() != want) {
      return absl::DataLossError(absl::StrFormat("%s frame of layer %d: payload is %d bytes, want %d", name_,
                                                 coverage.first_layer, payload.size(), want));
    }
    const std::optional<BadScale> bad = FindBadScale(quantizer_, payload, coverage.tokens);
    if (!bad.has_value()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrFormat("%s frame of layer %d, token %d: the scale of %c is %g, want 0 to 2^112", name_,
                        coverage.first_layer, coverage.token_begin + bad->token, bad->plane, bad->value));
  }

  const std::string& name_;
  const int bits_;
  const TokenQuantizer& quantizer_;
  const Transformer& model_;
  Buffer rows_;  // f32 [2, max_rows, kv_dim]
  Buffer wire_;  // a payload, of max_rows tokens at least
};

// What both sides are opened with.
struct Quantization {
  Quantization(int bit_count, const Transformer& model)
      : bits(bit_count), quantizer(bits, model.config().kv_dim()) {}

  CodecSpec Spec(const Transformer& model) const {
    return {.name = absl::StrCat("int", bits),
            .kind = bits == 8 ? FrameKind::kInt8 : FrameKind::kInt4,
            .shipped_layers = std::vector<bool>(model.config().layers, true),
            .max_frame_bytes = [quantizer = quantizer](int64_t tokens) {
              return 2 * PlaneBytes(quantizer, tokens);
            }};
  }
  double FlopsPerToken(const Transformer& model) const {
    return 2.0 * model.config().layers * quantizer.decode_flops();
  }

  int bits;
  TokenQuantizer quantizer;
};

class QuantizedEncoderFactory : public EncoderFactory {
 public:
  QuantizedEncoderFactory(const Quantization& quantization, const Transformer& model)
      : EncoderFactory(quantization.Spec(model), quantization.FlopsPerToken(model)),
        quantization_(quantization),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(auto outbox,
                            FrameOutbox::Create(model_, spec().max_frame_bytes(model_.options().max_rows)));
    return std::make_unique<QuantizedEncoder>(spec().name, quantization_.bits, quantization_.quantizer,
                                              model_, std::move(outbox));
  }

 private:
  const Quantization quantization_;
  const Transformer& model_;
};

class QuantizedDecoderFactory : public DecoderFactory {
 public:
  QuantizedDecoderFactory(const Quantization& quantization, const Transformer& model)
      : DecoderFactory(quantization.Spec(model), quantization.FlopsPerToken(model)),
        quantization_(quantization),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    const size_t floats = 2 * model_.options().max_rows * quantization_.quantizer.width();
    ALUDEL_ASSIGN_OR_RETURN(Buffer rows, model_.device()->Allocate(floats * sizeof(float)));
    ALUDEL_ASSIGN_OR_RETURN(Buffer wire,
                            model_.device()->Allocate(spec().max_frame_bytes(model_.options().max_rows)));
    return std::make_unique<QuantizedDecoder>(spec().name, quantization_.bits, quantization_.quantizer,
                                              model_, std::move(rows), std::move(wire));
  }

 private:
  const Quantization quantization_;
  const Transformer& model_;
};

}  // namespace

std::unique_ptr<EncoderFactory> MakeQuantizedEncoders(int bits, const Transformer& model) {
  return std::make_unique<QuantizedEncoderFactory>(Quantization(bits, model), model);
}

std::unique_ptr<DecoderFactory> MakeQuantizedDecoders(int bits, const Transformer& model) {
  return std::make_unique<QuantizedDecoderFactory>(Quantization(bits, model), model);
}

}  // namespace aludel
