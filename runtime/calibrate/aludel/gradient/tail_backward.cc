#include <algorithm>
#include <cmath>

#include "runtime/calibrate/aludel/gradient/tail_pass.h"
#include "runtime/calibrate/fit/dense.h"

namespace aludel {
namespace {

// dx [rows, w.cols()] = dy w, for y = x w^T.
void MultiplyBack(const std::vector<float>& dy, int64_t rows, const ModelMatrix& w, std::vector<float>* dx) {
  dx->resize(static_cast<size_t>(rows * w.cols()));
  w.MultiplyBack(dy.data(), rows, dx->data());
}

void AddNormGradients(const std::vector<float>& x, const std::vector<float>& weight, double eps,
                      const std::vector<float>& dy, std::vector<float>* dx) {
  const auto size = static_cast<int64_t>(weight.size());
  for (size_t at = 0; at < x.size(); at += weight.size()) {
    AddNormRowGradient(x.data() + at, weight.data(), size, eps, dy.data() + at, dx->data() + at);
  }
}

// Through down, silu(gate) * up and gate_up: with s the sigmoid of gate, d/d gate = up (s + gate s (1 - s)),
// d/d up = gate s.
void FeedBack(const HostLayer& w, const ModelConfig& config, const TailLayer& layer, int64_t tail,
              std::vector<float>* activated, TailGradients* g) {
  const int64_t ffn = config.ffn;
  MultiplyBack(g->x, tail, w.down, activated);
  g->wide.resize(tail * 2 * ffn);
  for (int64_t t = 0; t < tail; ++t) {
    const float* gate_up = layer.gate_up.data() + t * 2 * ffn;
    const float* back = activated->data() + t * ffn;
    float* out = g->wide.data() + t * 2 * ffn;
    for (int64_t j = 0; j < ffn; ++j) {
      const float gate = gate_up[j];
      const float s = 1.0f / (1.0f + std::exp(-gate));
      out[j] = back[j] * gate_up[ffn + j] * (s + gate * s * (1.0f - s));
      out[ffn + j] = back[j] * gate * s;
    }
  }
  MultiplyBack(g->wide, tail, w.gate_up, &g->h);
  AddNormGradients(layer.y, w.post_norm, config.rms_norm_eps, g->h, &g->x);
}

// From g->wide, the gradient of what the heads attended to, to q, k and v. For a row of scores,
// ds_j = scale p_j (dp_j - sum_i p_i dp_i).
void AttendBack(const ModelConfig& config, const TailPass& pass, const TailLayer& layer, TailGradients* g) {
  const int64_t n = pass.tail;
  const int64_t length = pass.length();
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  const int64_t head_dim = config.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  g->scores.resize(n * length);
  g->q.resize(n * q_dim);
  g->k.assign(length * kv_dim, 0.0f);
  g->v.assign(length * kv_dim, 0.0f);
  for (int head = 0; head < config.heads; ++head) {
    const int64_t column = head * head_dim;
    const int64_t kv_column = head / (config.heads / config.kv_heads) * head_dim;
    const float* p = layer.probabilities.data() + head * n * length;
    const float* back = g->wide.data() + column;
    Sgemm(true, false, length, head_dim, n, p, length, back, q_dim, 1.0f, g->v.data() + kv_column, kv_dim);
    Sgemm(false, true, n, length, head_dim, back, q_dim, layer.v.data() + kv_column, kv_dim, 0.0f,
          g->scores.data(), length);
    for (int64_t i = 0; i < n; ++i) {
      const float* weights = p + i * length;
      float* row = g->scores.data() + i * length;
      double mean = 0;
      for (int64_t s = 0; s < length; ++s) mean += static_cast<double>(weights[s]) * row[s];
      const auto center = static_cast<float>(mean);
      for (int64_t s = 0; s < length; ++s) row[s] = scale * weights[s] * (row[s] - center);
    }
    Sgemm(false, false, n, head_dim, length, g->scores.data(), length, layer.k.data() + kv_column, kv_dim,
          0.0f, g->q.data() + column, q_dim);
    Sgemm(true, false, length, head_dim, n, g->scores.data(), length, layer.q.data() + column, q_dim, 1.0f,
          g->k.data() + kv_column, kv_dim);
  }
}

// d qkv, before q/k-norm, from the rotated q, k and v of the tail.
void ProjectBack(const HostLayer& w, const ModelConfig& config, const TailPass& pass, const TailLayer& layer,
                 TailGradients* g) {
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  const int64_t qkv_dim = q_dim + 2 * kv_dim;
  const int64_t head_dim = config.head_dim;
  g->qkv.assign(pass.tail * qkv_dim, 0.0f);
  for (int64_t i = 0; i < pass.tail; ++i) {
    float* out = g->qkv.data() + i * qkv_dim;
    float* q = g->q.data() + i * q_dim;
    const int64_t key = pass.rows[i];
    const float* k = g->k.data() + key * kv_dim;
    pass.rotations.ApplyTransposed(pass.positions[key], config.heads, q);
    std::copy_n(g->v.data() + key * kv_dim, kv_dim, out + q_dim + kv_dim);
    if (!config.qk_norm) {
      std::copy_n(q, q_dim, out);
      std::copy_n(k, kv_dim, out + q_dim);
      continue;
    }
    const float* plain = layer.qkv.data() + i * qkv_dim;
    for (int64_t c = 0; c < q_dim; c += head_dim) {
      AddNormRowGradient(plain + c, w.q_norm.data(), head_dim, config.rms_norm_eps, q + c, out + c);
    }
    for (int64_t c = 0; c < kv_dim; c += head_dim) {
      AddNormRowGradient(plain + q_dim + c, w.k_norm.data(), head_dim, config.rms_norm_eps, k + c,
                         out + q_dim + c);
    }
  }
}

}  // namespace

void RunTailBackward(const HostModel& model, const std::vector<float>& d_logits, TailPass* pass,
                     std::vector<float>* gradient) {
  const ModelConfig& config = model.config;
  const int64_t kv_dim = config.kv_dim();
  const int64_t width = int64_t{2} * config.layers * kv_dim;
  TailGradients& g = pass->gradients;
  MultiplyBack(d_logits, pass->tail, model.head(), &g.h);
  g.x.assign(pass->x.size(), 0.0f);
  AddNormGradients(pass->x, model.final_norm, config.rms_norm_eps, g.h, &g.x);
  gradient->resize(static_cast<size_t>(pass->tokens * width));
  for (int l = config.layers - 1; l >= 0; --l) {
    const HostLayer& w = model.layers[l];
    const TailLayer& layer = pass->layers[l];
    FeedBack(w, config, layer, pass->tail, &pass->wide, &g);
    MultiplyBack(g.x, pass->tail, w.o, &g.wide);
    AttendBack(config, *pass, layer, &g);
    for (int64_t s = 0; s < pass->length(); ++s) {
      pass->rotations.ApplyTransposed(pass->positions[s], config.kv_heads, g.k.data() + s * kv_dim);
    }
    for (int64_t t = 0; t < pass->tokens; ++t) {
      float* row = gradient->data() + t * width + l * 2 * kv_dim;
      std::copy_n(g.k.data() + t * kv_dim, kv_dim, row);
      std::copy_n(g.v.data() + t * kv_dim, kv_dim, row + kv_dim);
    }
    if (l == 0) break;  // gradients of the embeddings are not needed
    ProjectBack(w, config, *pass, layer, &g);
    MultiplyBack(g.qkv, pass->tail, w.qkv, &g.h);
    AddNormGradients(layer.x, w.input_norm, config.rms_norm_eps, g.h, &g.x);
  }
}

}  // namespace aludel
