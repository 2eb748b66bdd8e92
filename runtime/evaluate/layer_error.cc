#include "runtime/evaluate/layer_error.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "kernels/check.h"
#include "kernels/fp8_pages.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Elements [begin, end) of both.
ErrorSum Compare(const std::vector<float>& found, const std::vector<float>& want, size_t begin, size_t end) {
  ErrorSum sum;
  for (size_t i = begin; i < end; ++i) {
    const double difference = found[i] - want[i];
    sum.error += difference * difference;
    sum.energy += double{want[i]} * want[i];
  }
  return sum;
}

// Both sides less their means.
ErrorSum CompareCentered(const float* found, const float* want, int64_t count) {
  double found_mean = 0, want_mean = 0;
  for (int64_t i = 0; i < count; ++i) {
    found_mean += found[i];
    want_mean += want[i];
  }
  found_mean /= static_cast<double>(count);
  want_mean /= static_cast<double>(count);
  ErrorSum sum;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = (found[i] - found_mean) - (want[i] - want_mean);
    sum.error += difference * difference;
    sum.energy += (want[i] - want_mean) * (want[i] - want_mean);
  }
  return sum;
}

// The dot products of one query head with the keys of its group, in f32 as attention itself forms them.
void Logits(const float* q, const float* k, int64_t keys, int kv_dim, int head_dim, float scale, float* out) {
  for (int64_t t = 0; t < keys; ++t) {
    const float* key = k + t * kv_dim;
    float sum = 0;
    for (int d = 0; d < head_dim; ++d) sum += q[d] * key[d];
    out[t] = scale * sum;
  }
}

// out = sum_t softmax(logits)[t] v[t].
void WeighValues(const float* logits, const float* v, int64_t keys, int kv_dim, int head_dim, float* out) {
  const float top = *std::max_element(logits, logits + keys);
  float total = 0;
  std::fill_n(out, head_dim, 0.0f);
  for (int64_t t = 0; t < keys; ++t) {
    const float weight = std::exp(logits[t] - top);
    const float* value = v + t * kv_dim;
    total += weight;
    for (int d = 0; d < head_dim; ++d) out[d] += weight * value[d];
  }
  for (int d = 0; d < head_dim; ++d) out[d] /= total;
}

float NumberAt(const uint8_t* bytes, DType dtype) {
  if (dtype == DType::kFp8) return FromFp8(Fp8{*bytes});
  if (dtype == DType::kBf16) {
    Bf16 narrow;
    std::memcpy(&narrow, bytes, sizeof(narrow));
    return ToFloat(narrow);
  }
  float wide;
  std::memcpy(&wide, bytes, sizeof(wide));
  return wide;
}

// `scale`: what pages hold the numbers times.
void ToFloats(const uint8_t* bytes, DType dtype, float scale, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = NumberAt(bytes + i * SizeOf(dtype), dtype) / scale;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerErrorMeter>> LayerErrorMeter::Create(Transformer& model,
                                                                         BlockPool& oracle_pool,
                                                                         BlockPool& tested_pool) {
  const int64_t rows = model.options().max_rows;
  const ModelConfig& config = model.config();
  ALUDEL_ASSIGN_OR_RETURN(Buffer staging, model.device()->Allocate(rows * config.q_dim() * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(Buffer output, model.device()->Allocate(rows * config.hidden * sizeof(float)));
  return std::unique_ptr<LayerErrorMeter>(
      new LayerErrorMeter(model, oracle_pool, tested_pool, std::move(staging), std::move(output)));
}

LayerErrorMeter::LayerErrorMeter(Transformer& model, BlockPool& oracle_pool, BlockPool& tested_pool,
                                 Buffer staging, Buffer output)
    : model_(model),
      oracle_pool_(oracle_pool),
      tested_pool_(tested_pool),
      rope_(MakeRopeFrequencies(model.config(), model.context())),
      staging_(std::move(staging)),
      output_(std::move(output)),
      oracle_(model.config().layers) {}

absl::Status LayerErrorMeter::OnLayer(const LayerSlice& slice) {
  Device* device = model_.device();
  const TensorView q = TensorView::Of(staging_.as<float>(), slice.q.rows, slice.q.cols);
  device->ops().Convert(slice.q, q, model_.stream());
  const SequenceRows rows{0, q.rows, slice.token_begin, {}};
  device->ops().Rope(q, model_.config().head_dim, {rope_.inverse_frequency, rope_.attention_factor},
                     absl::MakeConstSpan(&rows, 1), model_.stream());
  float* out = oracle_[slice.layer].q.data() + (slice.token_begin - first_query_) * q.cols;
  device->CopyToHost(out, q.data, q.rows * q.cols * sizeof(float), model_.stream());
  return device->Synchronize(model_.stream());
}

absl::Status LayerErrorMeter::RememberOracle(absl::Span<const BlockId> blocks,
                                             absl::Span<const int32_t> prompt, const Answer& answer) {
  first_query_ = static_cast<int64_t>(prompt.size()) - 1;
  queries_ = static_cast<int64_t>(answer.tokens.size());
  for (OracleLayer& layer : oracle_) layer.q.assign(queries_ * model_.config().q_dim(), 0.0f);
  ALUDEL_RETURN_IF_ERROR(CompareWithOracle(model_, oracle_pool_, blocks, prompt, answer, this).status());
  for (int layer = 0; layer < model_.config().layers; ++layer) {
    OracleLayer& oracle = oracle_[layer];
    const size_t size = (first_query_ + queries_) * model_.config().kv_dim();
    oracle.cache.k.resize(size);
    oracle.cache.v.resize(size);
    ALUDEL_RETURN_IF_ERROR(
        Read(oracle_pool_.Layer(layer), blocks, 0, first_query_ + queries_, &oracle.cache));
    oracle.attended = Attend(oracle.q, oracle.cache);
    ALUDEL_ASSIGN_OR_RETURN(oracle.output_energy, OutputEnergy(layer, oracle.attended.values));
  }
  return absl::OkStatus();
}

absl::Status LayerErrorMeter::Read(const PagedKv& paged, absl::Span<const BlockId> blocks, int64_t begin,
                                   int64_t end, Cache* cache) {
  const size_t row_bytes = paged.head_dim * SizeOf(paged.dtype);
  const size_t block_bytes = row_bytes * paged.block_tokens * paged.kv_heads;
  page_.resize(block_bytes);
  const std::tuple<const void*, float, std::vector<float>*> planes[] = {
      {paged.k, KeyScale(paged.dtype), &cache->k}, {paged.v, 1.0f, &cache->v}};
  for (const auto& [plane, scale, out] : planes) {
    for (int64_t block = begin / paged.block_tokens; block * paged.block_tokens < end; ++block) {
      const char* from = static_cast<const char*>(plane) + blocks[block] * block_bytes;
      model_.device()->CopyToHost(page_.data(), from, block_bytes, model_.stream());
      ALUDEL_RETURN_IF_ERROR(model_.device()->Synchronize(model_.stream()));
      // [kv_heads, block_tokens, head_dim] -> [tokens, kv_heads * head_dim]
      const int64_t first = block * paged.block_tokens;
      for (int64_t row = 0; row < int64_t{paged.kv_heads} * paged.block_tokens; ++row) {
        const int64_t token = first + row % paged.block_tokens;
        if (token < begin || token >= end) continue;
        const int64_t head = row / paged.block_tokens;
        ToFloats(page_.data() + row * row_bytes, paged.dtype, scale, paged.head_dim,
                 out->data() + (token * paged.kv_heads + head) * paged.head_dim);
      }
    }
  }
  return absl::OkStatus();
}

LayerErrorMeter::Attended LayerErrorMeter::Attend(const std::vector<float>& q, const Cache& cache) const {
  const ModelConfig& config = model_.config();
  const int64_t keys = first_query_ + queries_;
  const float scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  Attended attended;
  attended.logits.resize(queries_ * config.heads * keys);
  attended.values.resize(queries_ * config.q_dim());
  for (int64_t query = 0; query < queries_; ++query) {
    const int64_t end = first_query_ + query + 1;
    const int64_t begin = config.sliding_window > 0 ? std::max<int64_t>(0, end - config.sliding_window) : 0;
    for (int head = 0; head < config.heads; ++head) {
      const int64_t kv = int64_t{head / (config.heads / config.kv_heads)} * config.head_dim;
      const int64_t at = query * config.q_dim() + int64_t{head} * config.head_dim;
      float* logits = attended.logits.data() + (query * config.heads + head) * keys + begin;
      Logits(q.data() + at, cache.k.data() + begin * config.kv_dim() + kv, end - begin, config.kv_dim(),
             config.head_dim, scale, logits);
      WeighValues(logits, cache.v.data() + begin * config.kv_dim() + kv, end - begin, config.kv_dim(),
                  config.head_dim, attended.values.data() + at);
    }
  }
  return attended;
}

absl::StatusOr<double> LayerErrorMeter::OutputEnergy(int layer, const std::vector<float>& values) {
  const ModelConfig& config = model_.config();
  Device* device = model_.device();
  std::vector<float> projected;
  double energy = 0;
  for (int64_t begin = 0; begin < queries_; begin += model_.options().max_rows) {
    const int64_t rows = std::min(model_.options().max_rows, queries_ - begin);
    projected.resize(rows * config.hidden);
    device->CopyToDevice(staging_.data(), values.data() + begin * config.q_dim(),
                         rows * config.q_dim() * sizeof(float), model_.stream());
    model_.ProjectOutput(layer, TensorView::Of(staging_.as<float>(), rows, config.q_dim()),
                         TensorView::Of(output_.as<float>(), rows, config.hidden));
    device->CopyToHost(projected.data(), output_.data(), projected.size() * sizeof(float), model_.stream());
    ALUDEL_RETURN_IF_ERROR(device->Synchronize(model_.stream()));
    for (const float value : projected) energy += double{value} * value;
  }
  return energy;
}

absl::StatusOr<std::vector<LayerError>> LayerErrorMeter::Measure(absl::Span<const BlockId> blocks,
                                                                 int64_t begin, int64_t end) {
  ALUDEL_CHECK(begin >= 0 && begin <= end && end <= first_query_);
  const ModelConfig& config = model_.config();
  std::vector<LayerError> errors(config.layers);
  const int64_t keys = first_query_ + queries_;
  for (int layer = 0; layer < config.layers; ++layer) {
    const OracleLayer& oracle = oracle_[layer];
    Cache cache = oracle.cache;
    ALUDEL_RETURN_IF_ERROR(Read(tested_pool_.Layer(layer), blocks, begin, end, &cache));
    const size_t first = begin * config.kv_dim(), last = end * config.kv_dim();
    errors[layer].k = Compare(cache.k, oracle.cache.k, first, last);
    errors[layer].v = Compare(cache.v, oracle.cache.v, first, last);
    const Attended attended = Attend(oracle.q, cache);
    for (int64_t row = 0; row < queries_ * config.heads; ++row) {
      const int64_t behind = first_query_ + row / config.heads + 1;
      const int64_t from =
          config.sliding_window > 0 ? std::max<int64_t>(0, behind - config.sliding_window) : 0;
      errors[layer].logits.Add(CompareCentered(attended.logits.data() + row * keys + from,
                                               oracle.attended.logits.data() + row * keys + from,
                                               behind - from));
    }
    // The difference goes through W_o, not both sides: a bf16 product would round small differences away.
    std::vector<float> difference = attended.values;
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= oracle.attended.values[i];
    ALUDEL_ASSIGN_OR_RETURN(errors[layer].output.error, OutputEnergy(layer, difference));
    errors[layer].output.energy = oracle.output_energy;
  }
  return errors;
}

}  // namespace aludel
