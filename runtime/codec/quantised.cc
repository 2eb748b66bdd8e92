#include "runtime/codec/quantised.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/token_quantiser.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Little-endian, wherever we run.
void PutScale(uint8_t* at, Bf16 scale) {
  at[0] = static_cast<uint8_t>(scale.bits);
  at[1] = static_cast<uint8_t>(scale.bits >> 8);
}
Bf16 GetScale(const uint8_t* at) { return {static_cast<uint16_t>(at[0] | at[1] << 8)}; }

// Bytes of K or V of `tokens` tokens: scales, then codes.
size_t PlaneBytes(const TokenQuantiser& quantiser, int64_t tokens) {
  return static_cast<size_t>(tokens) * (sizeof(Bf16) + quantiser.code_bytes());
}

class QuantisedEncoder : public KvEncoder {
 public:
  QuantisedEncoder(const std::string& name, const TokenQuantiser& quantiser, const Transformer& model,
                   Buffer staging)
      : name_(name),
        quantiser_(quantiser),
        device_(model.device()),
        stream_(model.stream()),
        max_rows_(model.options().max_rows),
        staging_(std::move(staging)),
        rows_(2 * max_rows_ * quantiser.width()) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    const int64_t tokens = slice.tokens();
    const int64_t width = quantiser_.width();
    ALUDEL_CHECK(tokens <= max_rows_ && slice.k.cols == width && slice.v.cols == width);
    float* k = staging_.as<float>();
    float* v = k + tokens * width;
    device_->ops().Convert(slice.k, TensorView::Of(k, tokens, width), stream_);
    device_->ops().Convert(slice.v, TensorView::Of(v, tokens, width), stream_);
    device_->CopyToHost(rows_.data(), k, 2 * tokens * width * sizeof(float), stream_);
    ALUDEL_RETURN_IF_ERROR(device_->Synchronize(stream_));

    const size_t plane_bytes = PlaneBytes(quantiser_, tokens);
    ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink.Reserve(2 * plane_bytes));
    for (int plane = 0; plane < 2; ++plane) {
      uint8_t* scales = payload.data() + plane * plane_bytes;
      uint8_t* codes = scales + tokens * sizeof(Bf16);
      float* values = rows_.data() + plane * tokens * width;
      for (int64_t t = 0; t < tokens; ++t) {
        const Bf16 scale = quantiser_.Encode(values + t * width, codes + t * quantiser_.code_bytes());
        if (!TokenQuantiser::ValidScale(scale)) {
          return absl::InternalError(
              absl::StrFormat("layer %d, token %d: %s holds values that %s cannot scale", slice.layer,
                              slice.token_begin + t, plane == 0 ? "K" : "V", name_));
        }
        PutScale(scales + t * sizeof(Bf16), scale);
      }
    }
    return sink.Commit(SliceCoverage(slice), 2 * plane_bytes);
  }

 private:
  const std::string& name_;
  const TokenQuantiser& quantiser_;
  Device* device_;
  Stream stream_;
  int64_t max_rows_;
  Buffer staging_;           // f32 [2, max_rows, kv_dim]
  std::vector<float> rows_;  // the same on the host
};

class QuantisedDecoder : public KvDecoder {
 public:
  QuantisedDecoder(const std::string& name, const TokenQuantiser& quantiser, const Transformer& model,
                   Buffer staging)
      : name_(name),
        quantiser_(quantiser),
        device_(model.device()),
        stream_(model.stream()),
        layers_(model.config().layers),
        max_rows_(model.options().max_rows),
        staging_(std::move(staging)),
        rows_(2 * max_rows_ * quantiser.width()) {}

  absl::Status Begin(const KvTarget&) override { return absl::OkStatus(); }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(coverage, layers_, target));
    ALUDEL_RETURN_IF_ERROR(CheckPayload(coverage, payload));
    const int64_t width = quantiser_.width();
    for (int64_t begin = 0; begin < coverage.tokens; begin += max_rows_) {
      const int64_t tokens = std::min<int64_t>(max_rows_, coverage.tokens - begin);
      for (int plane = 0; plane < 2; ++plane) {
        const uint8_t* scales = payload.data() + plane * PlaneBytes(quantiser_, coverage.tokens);
        const uint8_t* codes = scales + coverage.tokens * sizeof(Bf16);
        float* values = rows_.data() + plane * tokens * width;
        for (int64_t t = 0; t < tokens; ++t) {
          quantiser_.Decode(GetScale(scales + (begin + t) * sizeof(Bf16)),
                            codes + (begin + t) * quantiser_.code_bytes(), values + t * width);
        }
      }
      float* k = staging_.as<float>();
      device_->CopyToDevice(k, rows_.data(), 2 * tokens * width * sizeof(float), stream_);
      target.model->WriteKv(coverage.first_layer, coverage.token_begin + begin, target.blocks,
                            TensorView::Of(k, tokens, width),
                            TensorView::Of(k + tokens * width, tokens, width), *target.pool);
      // The next rows reuse the staging memory.
      ALUDEL_RETURN_IF_ERROR(device_->Synchronize(stream_));
    }
    return absl::OkStatus();
  }

 private:
  // Length and every scale, before anything is written. Any code is a valid one.
  absl::Status CheckPayload(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) const {
    const size_t plane_bytes = PlaneBytes(quantiser_, coverage.tokens);
    if (payload.size() != 2 * plane_bytes) {
      return absl::DataLossError(absl::StrFormat("%s frame of layer %d: payload is %d bytes, want %d", name_,
                                                 coverage.first_layer, payload.size(), 2 * plane_bytes));
    }
    for (int plane = 0; plane < 2; ++plane) {
      const uint8_t* scales = payload.data() + plane * plane_bytes;
      for (uint32_t t = 0; t < coverage.tokens; ++t) {
        const Bf16 scale = GetScale(scales + t * sizeof(Bf16));
        if (TokenQuantiser::ValidScale(scale)) continue;
        return absl::DataLossError(absl::StrFormat(
            "%s frame of layer %d, token %d: the scale of %s is %g, want 0 to 2^112", name_,
            coverage.first_layer, coverage.token_begin + t, plane == 0 ? "K" : "V", ToFloat(scale)));
      }
    }
    return absl::OkStatus();
  }

  const std::string& name_;
  const TokenQuantiser& quantiser_;
  Device* device_;
  Stream stream_;
  int layers_;
  int64_t max_rows_;
  Buffer staging_;           // f32 [2, max_rows, kv_dim]
  std::vector<float> rows_;  // the same on the host
};

class QuantisedCodec : public KvCodec {
 public:
  QuantisedCodec(int bits, const Transformer& model)
      : model_(model),
        name_(absl::StrCat("int", bits)),
        kind_(bits == 8 ? FrameKind::kInt8 : FrameKind::kInt4),
        shipped_(model.config().layers, true),
        quantiser_(bits, model.config().kv_dim()) {}

  const std::string& name() const override { return name_; }
  const std::string& artifact_hash() const override { return no_artifact_; }
  FrameKind kind() const override { return kind_; }
  const std::vector<bool>& shipped_layers() const override { return shipped_; }
  int native_layers() const override { return 0; }
  int64_t native_head_tokens() const override { return 0; }
  int64_t native_tail_tokens() const override { return 0; }
  double flops_per_token() const override { return 2.0 * model_.config().layers * quantiser_.decode_flops(); }
  size_t MaxFrameBytes(int64_t tokens) const override { return 2 * PlaneBytes(quantiser_, tokens); }

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(Buffer staging, AllocateStaging());
    return std::make_unique<QuantisedEncoder>(name_, quantiser_, model_, std::move(staging));
  }

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(Buffer staging, AllocateStaging());
    return std::make_unique<QuantisedDecoder>(name_, quantiser_, model_, std::move(staging));
  }

 private:
  absl::StatusOr<Buffer> AllocateStaging() const {
    return model_.device()->Allocate(2 * model_.options().max_rows * quantiser_.width() * sizeof(float));
  }

  const Transformer& model_;
  std::string name_;
  std::string no_artifact_;
  FrameKind kind_;
  std::vector<bool> shipped_;
  TokenQuantiser quantiser_;
};

}  // namespace

std::unique_ptr<KvCodec> MakeQuantisedCodec(int bits, const Transformer& model) {
  return std::make_unique<QuantisedCodec>(bits, model);
}

}  // namespace aludel
