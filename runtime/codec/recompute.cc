#include "runtime/codec/recompute.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/outbox.h"
#include "runtime/codec/raw.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr absl::string_view kDefault = "recompute";
constexpr absl::string_view kPrefix = "recompute-";

// Layers [first, end).
struct LayerGroup {
  int first = 0;
  int end = 0;
};

class RecomputeEncoder : public KvEncoder {
 public:
  RecomputeEncoder(LayerGroup group, const Transformer& model, std::unique_ptr<FrameOutbox> outbox)
      : group_(group), model_(model), outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    const int layers = model_.config().layers;
    if (slice.layer < group_.first || slice.layer >= group_.end) {
      return EncodeRaw(slice, model_, slice.layer + 1 == layers, *outbox_, sink);
    }
    if (slice.layer > group_.first) return absl::OkStatus();
    const int64_t hidden = model_.config().hidden;
    ALUDEL_CHECK(slice.x.cols == hidden && slice.x.rows == slice.tokens());
    const TensorView x = TensorView::Of(reinterpret_cast<Bf16*>(outbox_->Next()), slice.tokens(), hidden);
    model_.device()->ops().Convert(slice.x, x, model_.stream());
    FrameCoverage coverage = SliceCoverage(slice);
    coverage.layers = static_cast<uint16_t>(group_.end - group_.first);
    return outbox_->Add(coverage, x.rows * hidden * sizeof(Bf16), /*last=*/group_.end == layers, sink);
  }

 private:
  LayerGroup group_;
  const Transformer& model_;
  std::unique_ptr<FrameOutbox> outbox_;
};

class RecomputeDecoder : public KvDecoder {
 public:
  RecomputeDecoder(const std::string& name, LayerGroup group, std::unique_ptr<KvDecoder> raw)
      : name_(name), group_(group), raw_(std::move(raw)) {}

  absl::Status Begin(const KvTarget& target) override {
    ALUDEL_CHECK(target.begin == 0);  // it attends to every page before
    return raw_->Begin(target);
  }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    const int last = coverage.first_layer + coverage.layers - 1;
    if (last < group_.first || coverage.first_layer >= group_.end) {
      return raw_->Apply(coverage, payload, target);
    }
    ALUDEL_ASSIGN_OR_RETURN(std::vector<float> x, CheckGroupFrame(coverage, payload, target));
    const auto next = early_.lower_bound(coverage.token_begin);
    const int64_t end = int64_t{coverage.token_begin} + coverage.tokens;
    if (coverage.token_begin < done_ || (next != early_.end() && next->first < end) ||
        (next != early_.begin() && End(*std::prev(next), target) > coverage.token_begin)) {
      return absl::AlreadyExistsError(absl::StrFormat(
          "%s: tokens [%d, %d) of the group overlap those that came", name_, coverage.token_begin, end));
    }
    early_.emplace(coverage.token_begin, std::move(x));
    while (!early_.empty() && early_.begin()->first == done_) {
      ALUDEL_RETURN_IF_ERROR(RunChunk(early_.begin()->second, target));
      early_.erase(early_.begin());
    }
    return absl::OkStatus();
  }

 private:
  using Chunk = std::pair<const int64_t, std::vector<float>>;

  static int64_t End(const Chunk& chunk, const KvTarget& target) {
    return chunk.first + static_cast<int64_t>(chunk.second.size()) / target.model->config().hidden;
  }

  // The residual stream in f32, after every check.
  absl::StatusOr<std::vector<float>> CheckGroupFrame(const FrameCoverage& coverage,
                                                     absl::Span<const uint8_t> payload,
                                                     const KvTarget& target) const {
    if (coverage.first_layer != group_.first || coverage.layers != group_.end - group_.first) {
      return absl::DataLossError(absl::StrFormat(
          "%s: frame holds layers [%d, %d), want [%d, %d) together", name_, coverage.first_layer,
          coverage.first_layer + coverage.layers, group_.first, group_.end));
    }
    FrameCoverage one_layer = coverage;
    one_layer.layers = 1;
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(one_layer, target.model->config().layers, target));
    const size_t values = size_t{coverage.tokens} * target.model->config().hidden;
    if (payload.size() != values * sizeof(Bf16)) {
      return absl::DataLossError(absl::StrFormat("%s frame of layer %d: payload is %d bytes, want %d", name_,
                                                 group_.first, payload.size(), values * sizeof(Bf16)));
    }
    std::vector<float> x(values);
    for (size_t i = 0; i < values; ++i) {
      x[i] = ToFloat({static_cast<uint16_t>(payload[2 * i] | payload[2 * i + 1] << 8)});
      // Unlike a bad key, it would spread: attention carries it to every later token.
      if (std::isfinite(x[i])) continue;
      return absl::DataLossError(absl::StrFormat(
          "%s frame of layer %d: value %d of the residual stream is %g", name_, group_.first, i, x[i]));
    }
    return x;
  }

  absl::Status RunChunk(const std::vector<float>& x, const KvTarget& target) {
    const int64_t hidden = target.model->config().hidden;
    const int64_t end = done_ + static_cast<int64_t>(x.size()) / hidden;
    for (int64_t begin = done_; done_ < end;) {
      BatchItem item;
      item.ids = target.prompt.subspan(done_, std::min(end - done_, target.model->options().max_rows));
      item.position = done_;
      item.blocks = target.blocks;
      item.adapter = target.adapter;
      const absl::Span<const float> rows =
          absl::MakeConstSpan(x).subspan((done_ - begin) * hidden, item.ids.size() * hidden);
      ALUDEL_RETURN_IF_ERROR(target.model->ForwardLayers(item, group_.first, group_.end, rows, *target.pool));
      done_ += static_cast<int64_t>(item.ids.size());
    }
    return absl::OkStatus();
  }

  const std::string& name_;
  LayerGroup group_;
  std::unique_ptr<KvDecoder> raw_;
  int64_t done_ = 0;                             // tokens [0, done_) of the group are in the pages
  std::map<int64_t, std::vector<float>> early_;  // by first token; disjoint, all behind done_
};

// A format's name and group.
struct RecomputeFormat {
  std::string name;
  LayerGroup group;
};

size_t HiddenBytes(const Transformer& model) { return model.config().hidden * sizeof(Bf16); }

// `spec` is that of the other layers.
CodecSpec RecomputeSpec(const RecomputeFormat& format, CodecSpec spec, const Transformer& model) {
  spec.name = format.name;
  spec.kind = FrameKind::kRecompute;
  spec.recomputed_layers = format.group.end - format.group.first;
  spec.max_frame_bytes = [raw = std::move(spec.max_frame_bytes),
                          hidden = HiddenBytes(model)](int64_t tokens) {
    return std::max(raw(tokens), static_cast<size_t>(tokens) * hidden);
  };
  return spec;
}

class RecomputeEncoderFactory : public EncoderFactory {
 public:
  RecomputeEncoderFactory(const RecomputeFormat& format, const CodecSpec& raw, const Transformer& model)
      : EncoderFactory(RecomputeSpec(format, raw, model), 0), group_(format.group), model_(model) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(auto outbox,
                            FrameOutbox::Create(model_, spec().max_frame_bytes(model_.options().max_rows)));
    return std::make_unique<RecomputeEncoder>(group_, model_, std::move(outbox));
  }

 private:
  LayerGroup group_;
  const Transformer& model_;
};

class RecomputeDecoderFactory : public DecoderFactory {
 public:
  RecomputeDecoderFactory(const RecomputeFormat& format, std::unique_ptr<DecoderFactory> raw,
                          const Transformer& model)
      : DecoderFactory(RecomputeSpec(format, raw->spec(), model), 0),
        group_(format.group),
        raw_(std::move(raw)) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<KvDecoder> raw, raw_->NewDecoder());
    return std::make_unique<RecomputeDecoder>(spec().name, group_, std::move(raw));
  }

 private:
  LayerGroup group_;
  std::unique_ptr<DecoderFactory> raw_;  // of the other layers
};

absl::StatusOr<RecomputeFormat> ReadName(absl::string_view format, const Transformer& model) {
  ALUDEL_CHECK(IsRecomputeName(format));
  if (format == kDefault) {
    const int last = std::max(1, model.config().layers / 4) - 1;
    return RecomputeFormat{absl::StrFormat("recompute-0-%d", last), LayerGroup{0, last + 1}};
  }
  const std::vector<absl::string_view> bounds = absl::StrSplit(format.substr(kPrefix.size()), '-');
  int first = 0, last = 0;
  if (bounds.size() != 2 || !absl::SimpleAtoi(bounds[0], &first) || !absl::SimpleAtoi(bounds[1], &last) ||
      first < 0 || last < first) {
    return absl::InvalidArgumentError(
        absl::StrFormat("format \"%s\", want recompute-FIRST-LAST with layers FIRST <= LAST", format));
  }
  if (last >= model.config().layers) {
    return absl::FailedPreconditionError(
        absl::StrFormat("format \"%s\": the model has %d layers", format, model.config().layers));
  }
  return RecomputeFormat{std::string(format), LayerGroup{first, last + 1}};
}

}  // namespace

bool IsRecomputeName(absl::string_view format) {
  return format == kDefault || absl::StartsWith(format, kPrefix);
}

absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeRecomputeEncoders(absl::string_view format,
                                                                      const Transformer& model) {
  ALUDEL_ASSIGN_OR_RETURN(const RecomputeFormat read, ReadName(format, model));
  return std::make_unique<RecomputeEncoderFactory>(read, MakeRawEncoders(model)->spec(), model);
}

absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeRecomputeDecoders(absl::string_view format,
                                                                      const Transformer& model) {
  ALUDEL_ASSIGN_OR_RETURN(const RecomputeFormat read, ReadName(format, model));
  return std::make_unique<RecomputeDecoderFactory>(read, MakeRawDecoders(model), model);
}

}  // namespace aludel
