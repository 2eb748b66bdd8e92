#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/calibrate/aludel/gradient/tail_pass.h"
#include "runtime/calibrate/fit/dense.h"

namespace aludel {
namespace {

// out [rows, w.rows()] = beta out + x w^T.
void Multiply(const std::vector<float>& x, int64_t rows, const ModelMatrix& w, float beta,
              std::vector<float>* out) {
  out->resize(static_cast<size_t>(rows * w.rows()));
  w.Multiply(x.data(), rows, beta, out->data());
}

// Adds the bias, if there is one, to every row.
void AddBias(const std::vector<float>& bias, std::vector<float>* rows) {
  for (size_t at = 0; at < rows->size() && !bias.empty(); at += bias.size()) {
    for (size_t j = 0; j < bias.size(); ++j) (*rows)[at + j] += bias[j];
  }
}

void NormRows(const std::vector<float>& x, const std::vector<float>& weight, double eps,
              std::vector<float>* out) {
  out->resize(x.size());
  const auto size = static_cast<int64_t>(weight.size());
  for (size_t at = 0; at < x.size(); at += weight.size()) {
    NormRow(x.data() + at, weight.data(), size, eps, out->data() + at);
  }
}

// Keys and values of the cache, ready to attend. Rows of the tail are zeros until it is fed: weights of 0 are multiplied by
// them, and NaN would come through.
void LoadCache(const ModelConfig& config, const CachedTail& input, TailPass* pass) {
  const int64_t kv_dim = config.kv_dim();
  const int64_t width = int64_t{2} * config.layers * kv_dim;
  pass->rotations.Grow(1 + *std::max_element(pass->positions.begin(), pass->positions.end()));
  pass->layers.resize(config.layers);
  for (int l = 0; l < config.layers; ++l) {
    TailLayer& layer = pass->layers[l];
    layer.k.assign(pass->length() * kv_dim, 0.0f);
    layer.v.assign(pass->length() * kv_dim, 0.0f);
    for (int64_t t = 0; t < pass->tokens; ++t) {
      const float* row = input.cache.data() + t * width + l * 2 * kv_dim;
      std::copy_n(row, kv_dim, layer.k.data() + t * kv_dim);
      std::copy_n(row + kv_dim, kv_dim, layer.v.data() + t * kv_dim);
      pass->rotations.Apply(pass->positions[t], config.kv_heads, layer.k.data() + t * kv_dim);
    }
  }
}

// Queries, keys and values of the tail, ready to attend.
void Project(const HostLayer& w, const ModelConfig& config, TailPass* pass, TailLayer* layer) {
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  const int64_t qkv_dim = q_dim + 2 * kv_dim;
  NormRows(layer->x, w.input_norm, config.rms_norm_eps, &pass->h);
  Multiply(pass->h, pass->tail, w.qkv, 0.0f, &layer->qkv);
  AddBias(w.qkv_bias, &layer->qkv);
  layer->q.resize(pass->tail * q_dim);
  for (int64_t i = 0; i < pass->tail; ++i) {
    const float* row = layer->qkv.data() + i * qkv_dim;
    const int64_t key = pass->rows[i];
    float* q = layer->q.data() + i * q_dim;
    float* k = layer->k.data() + key * kv_dim;
    std::copy_n(row, q_dim, q);
    std::copy_n(row + q_dim, kv_dim, k);
    std::copy_n(row + q_dim + kv_dim, kv_dim, layer->v.data() + key * kv_dim);
    if (config.qk_norm) {
      const int64_t head_dim = config.head_dim;
      for (int64_t c = 0; c < q_dim; c += head_dim) {
        NormRow(row + c, w.q_norm.data(), head_dim, config.rms_norm_eps, q + c);
      }
      for (int64_t c = 0; c < kv_dim; c += head_dim) {
        NormRow(row + q_dim + c, w.k_norm.data(), head_dim, config.rms_norm_eps, k + c);
      }
    }
    pass->rotations.Apply(pass->positions[key], config.heads, q);
    pass->rotations.Apply(pass->positions[key], config.kv_heads, k);
  }
}

// Softmax of scale * scores over what is visible; zero elsewhere, as the backward pass wants it.
void Softmax(float scale, const VisibleKeys& visible, int64_t size, float* scores) {
  float top = -std::numeric_limits<float>::infinity();
  for (const KeyRange& range : visible) {
    for (int64_t s = range.begin; s < range.end; ++s) top = std::max(top, scores[s]);
  }
  double sum = 0;
  int64_t hidden = 0;  // the ranges ascend
  for (const KeyRange& range : visible) {
    if (range.begin >= range.end) continue;
    std::fill(scores + hidden, scores + range.begin, 0.0f);
    for (int64_t s = range.begin; s < range.end; ++s) {
      scores[s] = std::exp(scale * (scores[s] - top));
      sum += scores[s];
    }
    hidden = range.end;
  }
  std::fill(scores + hidden, scores + size, 0.0f);
  const auto inverse = static_cast<float>(1.0 / sum);
  for (int64_t s = 0; s < size; ++s) scores[s] *= inverse;
}

// attended [n, q_dim].
void Attend(const ModelConfig& config, const TailPass& pass, TailLayer* layer, std::vector<float>* attended) {
  const int64_t n = pass.tail;
  const int64_t length = pass.length();
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  const int64_t head_dim = config.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  layer->probabilities.resize(config.heads * n * length);
  attended->resize(n * q_dim);
  for (int head = 0; head < config.heads; ++head) {
    const int64_t kv_column = head / (config.heads / config.kv_heads) * head_dim;
    float* p = layer->probabilities.data() + head * n * length;
    Sgemm(false, true, n, length, head_dim, layer->q.data() + head * head_dim, q_dim,
          layer->k.data() + kv_column, kv_dim, 0.0f, p, length);
    for (int64_t i = 0; i < n; ++i) Softmax(scale, pass.visible[i], length, p + i * length);
    Sgemm(false, false, n, head_dim, length, p, length, layer->v.data() + kv_column, kv_dim, 0.0f,
          attended->data() + head * head_dim, q_dim);
  }
}

void Feed(const HostLayer& w, const ModelConfig& config, TailPass* pass, TailLayer* layer) {
  NormRows(layer->y, w.post_norm, config.rms_norm_eps, &pass->h);
  Multiply(pass->h, pass->tail, w.gate_up, 0.0f, &layer->gate_up);
  AddBias(w.gate_up_bias, &layer->gate_up);
  const int64_t ffn = config.ffn;
  pass->wide.resize(pass->tail * ffn);
  for (int64_t t = 0; t < pass->tail; ++t) {
    const float* gate = layer->gate_up.data() + t * 2 * ffn;
    float* out = pass->wide.data() + t * ffn;
    for (int64_t j = 0; j < ffn; ++j) out[j] = gate[j] / (1.0f + std::exp(-gate[j])) * gate[ffn + j];
  }
  pass->x = layer->y;
  Multiply(pass->wide, pass->tail, w.down, 1.0f, &pass->x);
  AddBias(w.down_bias, &pass->x);
}

// The tail through the model, behind what is placed and loaded.
void RunTokens(const HostModel& model, absl::Span<const int32_t> ids, TailPass* pass) {
  const ModelConfig& config = model.config;
  pass->x.resize(pass->tail * config.hidden);
  for (int64_t i = 0; i < pass->tail; ++i)
    model.embedding.ReadRow(ids[i], pass->x.data() + i * config.hidden);
  for (int l = 0; l < config.layers; ++l) {
    const HostLayer& w = model.layers[l];
    TailLayer& layer = pass->layers[l];
    layer.x = pass->x;
    Project(w, config, pass, &layer);
    Attend(config, *pass, &layer, &pass->wide);
    layer.y = layer.x;
    Multiply(pass->wide, pass->tail, w.o, 1.0f, &layer.y);
    AddBias(w.o_bias, &layer.y);
    Feed(w, config, pass, &layer);
  }
  NormRows(pass->x, model.final_norm, config.rms_norm_eps, &pass->h);
  Multiply(pass->h, pass->tail, model.head(), 0.0f, &pass->logits);
}

int64_t Trunk(const CachedTail& input) { return input.branches.empty() ? input.tokens : input.trunk; }

TailBranch WholeTail(const CachedTail& input) {
  return {input.tokens, 0, static_cast<int64_t>(input.tail.size())};
}

// Positions of the cached rows, and of `tail` rows behind them, 0 as those of rows that no token sees.
void PlaceCache(const CachedTail& input, int64_t tail, TailPass* pass) {
  const int64_t trunk = Trunk(input);
  pass->tokens = input.tokens;
  pass->positions.assign(input.tokens + tail, 0);
  std::iota(pass->positions.begin(), pass->positions.begin() + trunk, int64_t{0});
  for (const TailBranch& branch : input.branches) {
    std::iota(pass->positions.begin() + branch.first_row,
              pass->positions.begin() + branch.first_row + branch.rows, trunk);
  }
}

// The branch's next token, whose tail's keys begin at row `tail_begin`: its key and what it sees.
void PlaceToken(int64_t trunk, const TailBranch& branch, int64_t tail_begin, int64_t index, int64_t window,
                TailPass* pass) {
  const int64_t behind = trunk + branch.rows;
  const int64_t position = behind + index;
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  pass->rows.push_back(tail_begin + index);
  pass->positions[tail_begin + index] = position;
  pass->visible.push_back({{{std::min(first, trunk), trunk},
                            {branch.first_row + std::clamp<int64_t>(first - trunk, 0, branch.rows),
                             branch.first_row + branch.rows},
                            {tail_begin + std::max<int64_t>(0, first - behind), tail_begin + index + 1}}});
}

void ClearTail(int64_t tokens, TailPass* pass) {
  pass->tail = tokens;
  pass->rows.clear();
  pass->visible.clear();
}

}  // namespace

void RunTail(const HostModel& model, const CachedTail& input, TailPass* pass) {
  const auto tail = static_cast<int64_t>(input.tail.size());
  PlaceCache(input, tail, pass);
  ClearTail(tail, pass);
  const TailBranch whole = WholeTail(input);
  int64_t tail_begin = input.tokens;
  for (const TailBranch& branch : input.branches.empty() ? absl::MakeConstSpan(&whole, 1) : input.branches) {
    for (int64_t i = 0; i < branch.tail; ++i) {
      PlaceToken(Trunk(input), branch, tail_begin, i, model.config.sliding_window, pass);
    }
    tail_begin += branch.tail;
  }
  LoadCache(model.config, input, pass);
  RunTokens(model, input.tail, pass);
}

void StartSteps(const HostModel& model, const CachedTail& input, int64_t most, TailPass* pass) {
  PlaceCache(input, most * static_cast<int64_t>(input.tail.size()), pass);
  LoadCache(model.config, input, pass);
}

void RunStep(const HostModel& model, const CachedTail& input, int64_t most, int64_t step,
             absl::Span<const size_t> live, absl::Span<const int32_t> ids, TailPass* pass) {
  ClearTail(static_cast<int64_t>(ids.size()), pass);
  const TailBranch whole = WholeTail(input);
  for (const size_t b : live) {
    const TailBranch& branch = input.branches.empty() ? whole : input.branches[b];
    PlaceToken(Trunk(input), branch, input.tokens + static_cast<int64_t>(b) * most, step,
               model.config.sliding_window, pass);
    pass->rotations.Grow(1 + pass->positions[pass->rows.back()]);
  }
  RunTokens(model, ids, pass);
}

}  // namespace aludel
