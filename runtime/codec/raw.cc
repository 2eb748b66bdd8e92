#include "runtime/codec/raw.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/stream_marks.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/outbox.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Bytes of K and V of one token in one layer.
size_t TokenBytes(const ModelConfig& config) { return size_t{2} * config.kv_dim() * sizeof(Bf16); }

class RawEncoder : public KvEncoder {
 public:
  RawEncoder(const Transformer& model, std::unique_ptr<FrameOutbox> outbox)
      : model_(model), outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    return EncodeRaw(slice, model_, slice.layer + 1 == model_.config().layers, *outbox_, sink);
  }

 private:
  const Transformer& model_;
  std::unique_ptr<FrameOutbox> outbox_;
};

class RawDecoder : public KvDecoder {
 public:
  RawDecoder(const Transformer& model, Buffer wire)
      : device_(model.device()),
        layers_(model.config().layers),
        kv_dim_(model.config().kv_dim()),
        max_rows_(model.options().max_rows),
        stream_(model.stream()),
        wire_(std::move(wire)) {}

  absl::Status Begin(const KvTarget&) override { return absl::OkStatus(); }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(coverage, layers_, target));
    const size_t plane_bytes = size_t{coverage.tokens} * kv_dim_ * sizeof(Bf16);
    if (payload.size() != 2 * plane_bytes) {
      return absl::DataLossError(absl::StrFormat("raw frame of layer %d: payload is %d bytes, want %d",
                                                 coverage.first_layer, payload.size(), 2 * plane_bytes));
    }
    for (int64_t begin = 0; begin < coverage.tokens; begin += max_rows_) {
      const int64_t rows = std::min<int64_t>(max_rows_, coverage.tokens - begin);
      const TensorView k = Load(payload.data(), begin, rows, 0);
      const TensorView v = Load(payload.data() + plane_bytes, begin, rows, 1);
      // The stream's next copy, to the same memory, comes behind this.
      target.model->WriteKv(coverage.first_layer, coverage.token_begin + begin, target.blocks, k, v,
                            *target.pool);
    }
    return Enqueued(*device_, stream_);
  }

 private:
  // Rows [begin, begin + rows) of a plane in device memory.
  TensorView Load(const uint8_t* plane, int64_t begin, int64_t rows, int slot) {
    Bf16* wire = wire_.as<Bf16>() + slot * max_rows_ * kv_dim_;
    const size_t row_bytes = kv_dim_ * sizeof(Bf16);
    device_->CopyToDevice(wire, plane + begin * row_bytes, rows * row_bytes, stream_);
    return TensorView::Of(wire, rows, kv_dim_);
  }

  Device* device_;
  int layers_;
  int kv_dim_;
  int64_t max_rows_;
  Stream stream_;
  Buffer wire_;  // bf16 [2, max_rows, kv_dim]
};

CodecSpec RawSpec(const Transformer& model) {
  return {.name = "raw",
          .kind = FrameKind::kRaw,
          .shipped_layers = std::vector<bool>(model.config().layers, true),
          .max_frame_bytes = [token_bytes = TokenBytes(model.config())](int64_t tokens) {
            return static_cast<size_t>(tokens) * token_bytes;
          }};
}

size_t StagingBytes(const Transformer& model) {
  return model.options().max_rows * TokenBytes(model.config());
}

class RawEncoderFactory : public EncoderFactory {
 public:
  explicit RawEncoderFactory(const Transformer& model) : EncoderFactory(RawSpec(model), 0), model_(model) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(auto outbox, FrameOutbox::Create(model_, StagingBytes(model_)));
    return std::make_unique<RawEncoder>(model_, std::move(outbox));
  }

 private:
  const Transformer& model_;
};

class RawDecoderFactory : public DecoderFactory {
 public:
  explicit RawDecoderFactory(const Transformer& model) : DecoderFactory(RawSpec(model), 0), model_(model) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(Buffer wire, model_.device()->Allocate(StagingBytes(model_)));
    return std::make_unique<RawDecoder>(model_, std::move(wire));
  }

 private:
  const Transformer& model_;
};

}  // namespace

absl::Status EncodeRaw(const LayerSlice& slice, const Transformer& model, bool last, FrameOutbox& outbox,
                       FrameSink& sink, std::optional<FrameOutbox::Coding> coding) {
  const ModelConfig& config = model.config();
  const int64_t rows = slice.tokens();
  const int64_t cols = config.kv_dim();
  ALUDEL_CHECK(rows <= model.options().max_rows && slice.k.cols == cols && slice.v.cols == cols);
  Bf16* const k = reinterpret_cast<Bf16*>(outbox.Next());
  Ops& ops = model.device()->ops();
  ops.Convert(slice.k, TensorView::Of(k, rows, cols), model.stream());
  ops.Convert(slice.v, TensorView::Of(k + rows * cols, rows, cols), model.stream());
  const size_t bytes = rows * TokenBytes(config);
  if (!coding.has_value()) return outbox.Add(SliceCoverage(slice), bytes, last, sink);
  return outbox.Add(SliceCoverage(slice), bytes, *std::move(coding), last, sink);
}

std::unique_ptr<EncoderFactory> MakeRawEncoders(const Transformer& model) {
  return std::make_unique<RawEncoderFactory>(model);
}

std::unique_ptr<DecoderFactory> MakeRawDecoders(const Transformer& model) {
  return std::make_unique<RawDecoderFactory>(model);
}

}  // namespace aludel
