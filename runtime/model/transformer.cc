#include "runtime/model/transformer.h"

#include <algorithm>
#include <cmath>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/fused_decode.h"
#include "kernels/replay_kinds.h"
#include "kernels/stream_marks.h"
#include "runtime/model/weights/weights.h"
#include "runtime/model/workspace.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Rows of logits in host memory at a time, where every token's are wanted: 20 MB with a vocabulary of 150,000.
constexpr int64_t kLogitRows = 32;

bool WantsAllLogits(absl::Span<const BatchItem> items) {
  return std::any_of(items.begin(), items.end(),
                     [](const BatchItem& item) { return item.all_logits != nullptr; });
}

// Where the device takes layers of `count` rows in fewer pieces; null elsewhere. Norms of heads stand between the pieces.
FusedDecode* FusedFor(Ops& ops, const ModelConfig& config, const LayerWeights& w, int64_t count) {
  auto* const fused = dynamic_cast<FusedDecode*>(&ops);
  if (fused == nullptr || config.qk_norm || count > static_cast<int64_t>(kMostFusedRows)) return nullptr;
  // A checkpoint may have some matrices of a layer in FP8 and others not.
  for (const PackedMatrix* matrix : {w.q.get(), w.kv.get(), w.gate_up.get()}) {
    if (!fused->Takes(count, *matrix, config.head_dim)) return nullptr;
  }
  return fused;
}

// Biases and norms of heads are of sums that are not rounded.
DType RowType(Device& device, const ModelConfig& config, DType compute) {
  return device.ops().KeepsNarrow() && !config.qkv_bias && !config.qk_norm ? compute : DType::kF32;
}

// The adapter of the item that `row` of the batch belongs to.
const LoraWeights* AdapterOf(absl::Span<const SequenceRows> rows, absl::Span<const BatchItem> items,
                             int64_t row) {
  const auto* after = std::upper_bound(rows.begin(), rows.end(), row,
                                       [](int64_t at, const SequenceRows& r) { return at < r.row_begin; });
  return items[after - rows.begin() - 1].adapter;
}

}  // namespace

size_t Transformer::WorkspaceBytes(const ModelConfig& config, const TransformerOptions& options) {
  size_t bytes = 0;
  for (const auto& item : Workspace::Plan(config, options.compute, options.max_rows)) bytes += item.bytes;
  return bytes;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(Device* device, const ModelPath& path,
                                                               const TransformerOptions& options,
                                                               const LoadProgress& progress) {
  if (options.max_rows <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_rows is %d, want a positive number", options.max_rows));
  }
  if (!HasScales(options.weight_format()) && options.weight_format() != FormatOf(options.compute)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights are to be %s, want the compute type (%s), fp8, int8 or int4",
                        Name(options.weight_format()), Name(options.compute)));
  }
  ALUDEL_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(path.base));
  std::unique_ptr<Transformer> model(new Transformer(device, std::move(config), options));
  ALUDEL_ASSIGN_OR_RETURN(model->stream_, device->CreateStream());
  ALUDEL_ASSIGN_OR_RETURN(model->copy_stream_, device->CreateStream());
  const absl::Time start = absl::Now();
  {
    ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
    ALUDEL_ASSIGN_OR_RETURN(model->weights_,
                            Weights::Load(device, files, model->config_, options.compute, options.weights,
                                          model->stream_, options.stream, progress));
    for (const auto& file : files.files()) model->load_report_.bytes += static_cast<int64_t>(file->size());
  }
  model->load_report_.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  model->load_report_.past_cache = model->weights_->past_cache;
  model->load_report_.kept_fp8 = model->weights_->kept_fp8;
  model->load_report_.dequantized_fp8 = model->weights_->dequantized_fp8;
  model->hash_ = model->weights_->hash;
  ALUDEL_ASSIGN_OR_RETURN(model->work_,
                          Workspace::Create(device, model->config_, options.compute, options.max_rows));
  return model;
}

Transformer::Transformer(Device* device, ModelConfig config, const TransformerOptions& options)
    : device_(device),
      config_(std::move(config)),
      options_(options),
      row_type_(RowType(*device_, config_, options_.compute)),
      rope_(MakeRopeFrequencies(config_, context())) {}

Transformer::~Transformer() {
  device_->DestroyStream(copy_stream_);
  device_->DestroyStream(stream_);
}

int64_t Transformer::context() const { return std::max(config_.max_positions, options_.rope_length); }

KvLayout Transformer::MakeKvLayout(int64_t blocks, int block_tokens, DType dtype) const {
  return {config_.layers, config_.kv_heads, config_.head_dim, block_tokens, blocks, dtype};
}

absl::Status Transformer::BeginBatch(absl::Span<const BatchItem> items, Batch* batch) {
  adapter_rows_.Clear();
  work_->angles_there = false;
  for (const BatchItem& item : items) {
    const auto size = static_cast<int64_t>(item.ids.size());
    for (const int32_t id : item.ids) {
      if (id < 0 || id >= config_.vocab) {
        return absl::InvalidArgumentError(
            absl::StrFormat("token id %d, vocabulary has %d", id, config_.vocab));
      }
    }
    if (item.position + size > config_.max_positions) {
      return absl::InvalidArgumentError(
          absl::StrFormat("position %d is beyond the model's context of %d tokens", item.position + size - 1,
                          config_.max_positions));
    }
    ALUDEL_CHECK(item.reads_only || batch->writing == batch->rows.size());
    if (!item.reads_only) ++batch->writing;
    adapter_rows_.Add(item.adapter, batch->count(), size);
    batch->rows.push_back({batch->count(), size, item.position, item.blocks});
    batch->ids.insert(batch->ids.end(), item.ids.begin(), item.ids.end());
  }
  if (batch->count() == 0 || batch->count() > options_.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("batch of %d tokens, want 1 to %d", batch->count(), options_.max_rows));
  }
  return absl::OkStatus();
}

void Transformer::Embed(const Batch& batch) {
  const TensorView x = TensorView::Of(work_->x.as<float>(), batch.count(), config_.hidden);
  device_->ops().Embed(batch.ids, *weights_->embedding, x, stream_);
}

void Transformer::Multiply(const TensorView& a, int layer,
                           std::unique_ptr<PackedMatrix> LayerWeights::*matrix,
                           std::unique_ptr<PackedLowRank> LayerUpdates::*update, const float* bias,
                           bool accumulate, const TensorView& out) {
  Ops& ops = device_->ops();
  const PackedMatrix& w = *(weights_->layers[layer].*matrix);
  const absl::Span<const LowRankRows> updates = adapter_rows_.OfLayer(layer, update);
  auto* const fused = dynamic_cast<FusedDecode*>(&ops);
  if (fused != nullptr && !updates.empty()) {
    return fused->GemmLowRank(a, w, bias, accumulate, updates, out, stream_);
  }
  ops.Gemm(a, w, bias, accumulate, out, stream_);
  if (!updates.empty()) ops.AddLowRank(a, updates, out, stream_);
}

TensorView Transformer::KvRows(int layer, int64_t rows, absl::Span<const BatchItem> items) const {
  const int64_t cols = 2 * config_.kv_dim();
  TensorView wanted;
  for (const BatchItem& item : items) {
    if (item.observer == nullptr || !item.observer_status.ok()) continue;
    const TensorView place = item.observer->KvRows(layer);
    if (place.data == nullptr || place.data == wanted.data) continue;
    if (wanted.data != nullptr) {
      wanted = {};
      break;
    }
    ALUDEL_CHECK(place.dtype == row_type_ && place.cols == cols);
    wanted = place;
  }
  if (wanted.data != nullptr) return wanted.Rows(0, rows);
  return {work_->kv.data(), row_type_, rows, cols, cols};
}

Transformer::CacheRows Transformer::CacheInput(int layer, const Batch& batch,
                                               absl::Span<const BatchItem> items, BlockPool& pool) {
  Ops& ops = device_->ops();
  const LayerWeights& w = weights_->layers[layer];
  const int64_t count = batch.count();
  const int64_t gemm_rows = GemmRows(count);
  const int64_t kv_dim = config_.kv_dim();
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const TensorView x = TensorView::Of(work_->x.as<float>(), count, config_.hidden);
  const TensorView h{work_->h.data(), options_.compute, gemm_rows, config_.hidden, config_.hidden};
  const TensorView all_kv = KvRows(layer, gemm_rows, items);
  ops.RmsNorm(x, w.input_norm.as<float>(), eps, h.Rows(0, count), stream_);
  const float* bias = w.qkv_bias.as<float>();
  Multiply(h, layer, &LayerWeights::kv, &LayerUpdates::kv, bias == nullptr ? nullptr : bias + config_.q_dim(),
           /*accumulate=*/false, all_kv);
  const TensorView k = all_kv.Rows(0, count).Cols(0, kv_dim);
  const TensorView v = all_kv.Rows(0, count).Cols(kv_dim, kv_dim);
  if (config_.qk_norm) ops.HeadNorm(k, config_.head_dim, w.k_norm.as<float>(), eps, stream_);
  const RopeTable rope{rope_.inverse_frequency, rope_.attention_factor};
  if (batch.writing > 0) ops.RopeWriteKv(k, v, rope, batch.writers(), pool.Layer(layer), stream_);
  layers_run_.fetch_add(1, std::memory_order_relaxed);
  return {h, k, v};
}

void Transformer::AttendInput(int layer, const Batch& batch, absl::Span<BatchItem> items, BlockPool& pool) {
  Ops& ops = device_->ops();
  const LayerWeights& w = weights_->layers[layer];
  const int64_t count = batch.count();
  auto* const fused = FusedFor(ops, config_, w, count);
  const bool observed = std::any_of(items.begin(), items.end(), [](const BatchItem& item) {
    return item.observer != nullptr;  // wants what stands between the fused operations
  });
  const bool all_write = batch.writing == batch.rows.size();
  work_->rotated = fused != nullptr && all_write && !observed;
  if (work_->rotated) {
    auto* const angles = work_->angles.as<float>();
    if (!work_->angles_there) {
      fused->RopeAngles({rope_.inverse_frequency, rope_.attention_factor}, batch.rows, angles, stream_);
    }
    work_->angles_there = true;
    fused->QkvRopeWrite(
        {TensorView::Of(work_->x.as<float>(), count, config_.hidden), w.input_norm.as<float>(),
         static_cast<float>(config_.rms_norm_eps), w.q.get(), w.kv.get(), w.qkv_bias.as<float>(), angles,
         TensorView::Of(work_->q.as<float>(), count, config_.q_dim()),
         adapter_rows_.OfLayer(layer, &LayerUpdates::q), adapter_rows_.OfLayer(layer, &LayerUpdates::kv)},
        batch.rows, pool.Layer(layer), stream_);
    layers_run_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto [h, k, v] = CacheInput(layer, batch, items, pool);
  const TensorView x = TensorView::Of(work_->x.as<float>(), count, config_.hidden);
  const TensorView all_q{work_->q.data(), QueryType(count), h.rows, config_.q_dim(), config_.q_dim()};
  Multiply(h, layer, &LayerWeights::q, &LayerUpdates::q, w.qkv_bias.as<float>(), /*accumulate=*/false, all_q);
  const TensorView q = all_q.Rows(0, count);
  if (config_.qk_norm) {
    const float eps = static_cast<float>(config_.rms_norm_eps);
    ops.HeadNorm(q, config_.head_dim, w.q_norm.as<float>(), eps, stream_);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    BatchItem& item = items[i];
    if (item.observer == nullptr || !item.observer_status.ok()) continue;
    const int64_t begin = batch.rows[i].row_begin;
    const int64_t size = batch.rows[i].rows;
    item.observer_status =
        item.observer->OnLayer({layer, item.position, h.Rows(begin, size), k.Rows(begin, size),
                                v.Rows(begin, size), x.Rows(begin, size), q.Rows(begin, size), begin});
  }
}

void Transformer::FinishLayer(int layer, const Batch& batch, BlockPool& pool) {
  Ops& ops = device_->ops();
  const LayerWeights& w = weights_->layers[layer];
  const std::vector<SequenceRows>& rows = batch.rows;
  const int64_t count = batch.count();
  const int64_t gemm_rows = GemmRows(count);
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const TensorView x = TensorView::Of(work_->x.as<float>(), gemm_rows, config_.hidden);
  const TensorView h{work_->h.data(), options_.compute, gemm_rows, config_.hidden, config_.hidden};
  const TensorView q{work_->q.data(), work_->rotated ? DType::kF32 : QueryType(count), count, config_.q_dim(),
                     config_.q_dim()};
  const TensorView attended{work_->attended.data(), options_.compute, gemm_rows, config_.q_dim(),
                            config_.q_dim()};
  const TensorView gate_up{work_->gate_up.data(), options_.compute, gemm_rows, 2 * config_.ffn,
                           2 * config_.ffn};
  const TensorView activated{work_->activated.data(), options_.compute, gemm_rows, config_.ffn, config_.ffn};
  const RopeTable rope{rope_.inverse_frequency, rope_.attention_factor};
  const AttentionParams params{config_.heads, config_.kv_heads, config_.head_dim,
                               1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                               config_.sliding_window};

  if (!work_->rotated) ops.Rope(q, config_.head_dim, rope, rows, stream_);
  ops.Attention(q, params, rows, pool.Layer(layer), attended.Rows(0, count), stream_);
  Multiply(attended, layer, &LayerWeights::o, &LayerUpdates::o, w.o_bias.as<float>(), /*accumulate=*/true, x);
  if (work_->rotated) {
    FusedFor(ops, config_, w, count)
        ->GateUpSilu(
            {x.Rows(0, count), w.post_norm.as<float>(), eps, w.gate_up.get(), w.gate_up_bias.as<float>(),
             activated.Rows(0, count), adapter_rows_.OfLayer(layer, &LayerUpdates::gate_up)},
            stream_);
  } else {
    ops.RmsNorm(x.Rows(0, count), w.post_norm.as<float>(), eps, h.Rows(0, count), stream_);
    Multiply(h, layer, &LayerWeights::gate_up, &LayerUpdates::gate_up, w.gate_up_bias.as<float>(),
             /*accumulate=*/false, gate_up);
    ops.SiluMul(gate_up.Rows(0, count), activated.Rows(0, count), stream_);
  }
  Multiply(activated, layer, &LayerWeights::down, &LayerUpdates::down, w.down_bias.as<float>(),
           /*accumulate=*/true, x);
}

void Transformer::Head(const Batch& batch, absl::Span<const BatchItem> items, const Output& output) {
  Ops& ops = device_->ops();
  const auto n = static_cast<int64_t>(output.rows.size());
  const auto drawn = static_cast<int64_t>(output.draws.size());
  const TensorView x = TensorView::Of(work_->x.as<float>(), batch.count(), config_.hidden);
  const TensorView last = TensorView::Of(work_->last.as<float>(), n, config_.hidden);
  const TensorView h{work_->h.data(), options_.compute, n, config_.hidden, config_.hidden};
  const TensorView logits = TensorView::Of(work_->logits.as<float>(), n, config_.vocab);
  ops.GatherRows(x, output.rows, last, stream_);
  ops.RmsNorm(last, weights_->final_norm.as<float>(), static_cast<float>(config_.rms_norm_eps), h, stream_);
  ops.Gemm(h, weights_->head(), nullptr, /*accumulate=*/false, logits, stream_);
  if (!adapter_rows_.empty()) {
    head_rows_.Clear();
    for (int64_t i = 0; i < n; ++i) head_rows_.Add(AdapterOf(batch.rows, items, output.rows[i]), i, 1);
    ops.AddLowRank(h, head_rows_.OfHead(), logits, stream_);
  }
  if (drawn == 0) return;
  ops.SampleRows(logits.Rows(n - drawn, drawn), output.draws, work_->tokens.as<int32_t>(), stream_);
}

int64_t Transformer::RepeatedPositions(absl::Span<const BatchItem> items, const Output& output) const {
  // No two steps have the same rows of each adapter; one that is asked for nothing is rare.
  if (!adapter_rows_.empty() || output.rows.empty()) return 0;
  if (static_cast<int64_t>(items.size()) > kMostFilledRows) return 0;
  int64_t positions = 0;
  for (const BatchItem& item : items) {
    if (item.ids.size() != 1 || item.observer != nullptr || item.reads_only || item.all_logits != nullptr) {
      return 0;
    }
    positions = std::max(positions, item.position + 1);
  }
  return positions;
}

size_t Transformer::LogitBytes(int64_t rows) const { return rows * config_.vocab * sizeof(float); }

absl::Status Transformer::ReserveLogits(int64_t rows) {
  if (LogitBytes(rows) <= work_->logits.size()) return absl::OkStatus();
  // Before the old one goes: a step that finds no memory leaves what the next ones need.
  ALUDEL_ASSIGN_OR_RETURN(work_->logits, device_->Allocate(LogitBytes(rows)));
  return absl::OkStatus();
}

int64_t Transformer::RoundedRows(int64_t rows) const {
  if (dynamic_cast<const ReplayKinds*>(device_) == nullptr || rows > kMostFilledRows) return rows;
  int64_t rounded = 1;
  while (rounded < rows) rounded *= 2;
  rounded = std::min(rounded, options_.max_rows);
  // A step whose layers are fused does not lose that for rows that nobody reads.
  const LayerWeights& layer = weights_->layers[0];
  const auto fused = [&](int64_t count) {
    return FusedFor(device_->ops(), config_, layer, count) != nullptr;
  };
  if (fused(rows)) {
    while (!fused(rounded)) --rounded;
  }
  return rounded;
}

void Transformer::RoundUp(const BlockPool& pool, Batch* batch, Output* output) const {
  const int64_t rows = RoundedRows(batch->count());
  std::vector<bool> asked(rows);
  for (const int64_t row : output->rows) asked[row] = true;
  while (batch->count() < rows) {
    batch->rows.push_back({batch->count(), 1, 0, pool.padding()});
    batch->ids.push_back(0);
    ++batch->writing;
  }
  if (!output->draws.empty()) {
    output->first_draw = output->rows.size() - output->draws.size();
    output->draws.insert(output->draws.begin(), output->first_draw, RowSampling{});
    output->draws.resize(rows);
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (!asked[row]) output->rows.push_back(row);
  }
}

void Transformer::RunStep(const Batch& batch, const Output& output, int64_t repeated_positions,
                          absl::Span<BatchItem> items, BlockPool& pool) {
  const bool all_logits = WantsAllLogits(items);
  const auto run = [&] {
    Embed(batch);
    for (int layer = 0; layer < config_.layers; ++layer) {
      AttendInput(layer, batch, items, pool);
      // Where no row is asked for, its K and V are all that anybody reads of the last layer.
      if (layer + 1 < config_.layers || !output.rows.empty() || all_logits) {
        FinishLayer(layer, batch, pool);
      }
    }
    if (!output.rows.empty()) Head(batch, items, output);
  };
  if (repeated_positions == 0) return run();
  const ReplayKey key{absl::HashOf(batch.rows.size(), output.rows.size(), output.draws.size(),
                                   pool.Layer(0).k, work_->logits.data()),
                      repeated_positions};
  device_->Replay(key, stream_, run);
}

absl::Status Transformer::GiveAllLogits(const Batch& batch, absl::Span<const BatchItem> items) {
  std::vector<float> logits;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].all_logits == nullptr) continue;
    const SequenceRows& rows = batch.rows[i];
    for (int64_t begin = 0; begin < rows.rows; begin += kLogitRows) {
      Output piece;
      for (int64_t row = begin; row < std::min(rows.rows, begin + kLogitRows); ++row) {
        piece.rows.push_back(rows.row_begin + row);
      }
      Head(batch, items, piece);
      logits.resize(piece.rows.size() * config_.vocab);
      device_->CopyToHost(logits.data(), work_->logits.data(), logits.size() * sizeof(float), stream_);
      ALUDEL_RETURN_IF_ERROR(device_->Synchronize(stream_));
      items[i].all_logits->OnLogits(items[i].position + begin, logits);
    }
  }
  return absl::OkStatus();
}

absl::Status Transformer::Forward(absl::Span<BatchItem> items, BlockPool& pool, std::vector<float>* logits) {
  Batch batch;
  ALUDEL_RETURN_IF_ERROR(BeginBatch(items, &batch));
  Output output;
  const auto last_row = [&](size_t i) { return batch.rows[i].row_begin + batch.rows[i].rows - 1; };
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].wants_logits) output.rows.push_back(last_row(i));
  }
  logits->resize(output.rows.size() * config_.vocab);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].draw.has_value()) continue;
    ALUDEL_CHECK(!items[i].wants_logits);
    output.rows.push_back(last_row(i));
    output.draws.push_back(*items[i].draw);
  }
  const int64_t repeated_positions = RepeatedPositions(items, output);
  if (repeated_positions > 0 && !pool.padding().empty()) RoundUp(pool, &batch, &output);
  const auto asked = static_cast<int64_t>(output.rows.size());
  if (LogitBytes(asked) > work_->logits.size()) {
    // Steps that grow row by row do not come here each time.
    ALUDEL_RETURN_IF_ERROR(ReserveLogits(std::min(2 * asked, options_.max_rows)));
  }
  RunStep(batch, output, repeated_positions, items, pool);
  device_->CopyToHost(logits->data(), work_->logits.data(), logits->size() * sizeof(float), stream_);
  std::vector<int32_t> tokens(output.draws.size());
  device_->CopyToHost(tokens.data(), work_->tokens.data(), tokens.size() * sizeof(int32_t), stream_);
  ALUDEL_RETURN_IF_ERROR(device_->Synchronize(stream_));
  size_t next = output.first_draw;
  for (BatchItem& item : items) {
    if (item.draw.has_value()) item.token = tokens[next++];
  }
  return WantsAllLogits(items) ? GiveAllLogits(batch, items) : absl::OkStatus();
}

absl::Status Transformer::ForwardShallow(absl::Span<BatchItem> items, int layers, BlockPool& pool,
                                         const TensorView& h) {
  ALUDEL_CHECK(layers >= 0 && layers < config_.layers);
  Batch batch;
  ALUDEL_RETURN_IF_ERROR(BeginBatch(items, &batch));
  Embed(batch);
  for (int layer = 0; layer < layers; ++layer) {
    AttendInput(layer, batch, items, pool);
    FinishLayer(layer, batch, pool);
  }
  const CacheRows last = CacheInput(layers, batch, {}, pool);
  device_->ops().Convert(last.h.Rows(0, batch.count()), h, stream_);
  return Enqueued(*device_, stream_);
}

absl::Status Transformer::ForwardLayers(const BatchItem& item, int first, int end, absl::Span<const float> x,
                                        BlockPool& pool) {
  ALUDEL_CHECK(first >= 0 && first < end && end <= config_.layers);
  ALUDEL_CHECK(x.size() == item.ids.size() * config_.hidden);
  BatchItem quiet = item;
  quiet.observer = nullptr;
  const absl::Span<BatchItem> items = absl::MakeSpan(&quiet, 1);
  Batch batch;
  ALUDEL_RETURN_IF_ERROR(BeginBatch(items, &batch));
  device_->CopyToDevice(work_->x.data(), x.data(), x.size() * sizeof(float), stream_);
  for (int layer = first; layer + 1 < end; ++layer) {
    AttendInput(layer, batch, items, pool);
    FinishLayer(layer, batch, pool);
  }
  CacheInput(end - 1, batch, {}, pool);  // nothing reads what comes behind it
  return device_->Synchronize(stream_);
}

void Transformer::ProjectKv(int layer, const TensorView& h, const TensorView& k, const TensorView& v,
                            const LoraWeights* adapter) {
  ALUDEL_CHECK(h.rows <= options_.max_rows && h.rows == k.rows && h.rows == v.rows);
  Ops& ops = device_->ops();
  const LayerWeights& w = weights_->layers[layer];
  const int64_t kv_dim = config_.kv_dim();
  const int64_t gemm_rows = GemmRows(h.rows);
  const TensorView narrow{work_->h.data(), options_.compute, gemm_rows, config_.hidden, config_.hidden};
  const TensorView kv{work_->kv.data(), row_type_, gemm_rows, 2 * kv_dim, 2 * kv_dim};
  ops.Convert(h, narrow.Rows(0, h.rows), stream_);
  const float* bias = w.qkv_bias.data() == nullptr ? nullptr : w.qkv_bias.as<float>() + config_.q_dim();
  adapter_rows_.Clear();
  adapter_rows_.Add(adapter, 0, h.rows);
  Multiply(narrow, layer, &LayerWeights::kv, &LayerUpdates::kv, bias, /*accumulate=*/false, kv);
  const TensorView keys = kv.Rows(0, h.rows).Cols(0, kv_dim);
  if (config_.qk_norm) {
    ops.HeadNorm(keys, config_.head_dim, w.k_norm.as<float>(), static_cast<float>(config_.rms_norm_eps),
                 stream_);
  }
  ops.Convert(keys, k, stream_);
  ops.Convert(kv.Rows(0, h.rows).Cols(kv_dim, kv_dim), v, stream_);
}

void Transformer::ProjectOutput(int layer, const TensorView& attended, const TensorView& out) {
  ALUDEL_CHECK(attended.rows <= options_.max_rows && attended.rows == out.rows);
  Ops& ops = device_->ops();
  const int64_t gemm_rows = GemmRows(attended.rows);
  const TensorView narrow{work_->attended.data(), options_.compute, gemm_rows, config_.q_dim(),
                          config_.q_dim()};
  const TensorView wide = TensorView::Of(work_->x.as<float>(), gemm_rows, config_.hidden);
  ops.Convert(attended, narrow.Rows(0, attended.rows), stream_);
  ops.Gemm(narrow, *weights_->layers[layer].o, nullptr, /*accumulate=*/false, wide, stream_);
  ops.Convert(wide.Rows(0, out.rows), out, stream_);
}

void Transformer::WriteKv(int layer, int64_t position, absl::Span<const BlockId> blocks, const TensorView& k,
                          const TensorView& v, BlockPool& pool) {
  const SequenceRows rows{0, k.rows, position, blocks};
  const RopeTable rope{rope_.inverse_frequency, rope_.attention_factor};
  device_->ops().RopeWriteKv(k, v, rope, absl::MakeConstSpan(&rows, 1), pool.Layer(layer), stream_);
}

void Transformer::WriteKvLayers(int first, int64_t position, absl::Span<const BlockId> blocks,
                                const TensorView& rows, BlockPool& pool) {
  const SequenceRows sequence{0, rows.rows, position, blocks};
  std::vector<PagedKv> layers;
  for (int64_t i = 0; i < rows.cols / (2 * config_.kv_dim()); ++i) {
    layers.push_back(pool.Layer(first + static_cast<int>(i)));
  }
  device_->ops().RopeWriteLayers(rows, {rope_.inverse_frequency, rope_.attention_factor},
                                 absl::MakeConstSpan(&sequence, 1), layers, stream_);
}

}  // namespace aludel
