#include "runtime/evaluate/layer_error.h"

#include <cmath>

#include "gtest/gtest.h"
#include "runtime/model/weights/safetensors.h"
#include "runtime/model/weights/stored_matrix.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

constexpr int kLayer = 3;
constexpr int64_t kTokens = 41;  // of the prompt
constexpr int64_t kHandedOver = kTokens - 1;

// q, k and v of one layer at every position, before RoPE, in double.
class Capture : public LayerObserver {
 public:
  absl::Status OnLayer(const LayerSlice& slice) override {
    if (slice.layer != kLayer) return absl::OkStatus();
    for (int64_t t = 0; t < slice.tokens(); ++t) {
      Append(slice.q, t, &q);
      Append(slice.k, t, &k);
      Append(slice.v, t, &v);
    }
    return absl::OkStatus();
  }
  std::vector<std::vector<double>> q, k, v;

 private:
  static void Append(const TensorView& x, int64_t row, std::vector<std::vector<double>>* rows) {
    const float* values = x.f32() + row * x.stride;
    rows->emplace_back(values, values + x.cols);
  }
};

// The equations of layer_error.h in double, from states before RoPE and the checkpoint's own W_o.
class Reference {
 public:
  Reference(const ModelConfig& config, Capture states) : config_(config), states_(std::move(states)) {
    const ModelFiles files = ModelFiles::Open("deploy/demo/chat").value();
    const auto wo = StoredMatrix::Open(files, config.quantization, "model.layers.3.self_attn.o_proj",
                                       config.hidden, config.q_dim());
    std::vector<float> values((*wo)->rows() * (*wo)->cols());
    (*wo)->Read(0, (*wo)->rows(), values.data());
    wo_.assign(values.begin(), values.end());
    for (size_t t = 0; t < states_.k.size(); ++t) {
      Rotate(t, &states_.q[t]);
      Rotate(t, &states_.k[t]);
    }
  }

  // With keys of handed-over tokens times `k_scale`, values times `v_scale`.
  LayerError Measure(double k_scale, double v_scale) const {
    LayerError error;
    for (int64_t t = 0; t < kHandedOver; ++t) {
      for (size_t i = 0; i < states_.k[t].size(); ++i) {
        error.k.Add({std::pow((k_scale - 1) * states_.k[t][i], 2), std::pow(states_.k[t][i], 2)});
        error.v.Add({std::pow((v_scale - 1) * states_.v[t][i], 2), std::pow(states_.v[t][i], 2)});
      }
    }
    for (size_t query = kHandedOver; query < states_.q.size(); ++query) {
      std::vector<double> found(config_.q_dim()), want(config_.q_dim());
      for (int head = 0; head < config_.heads; ++head) {
        const std::vector<double> a = Attend(query, head, k_scale, v_scale, &found);
        const std::vector<double> b = Attend(query, head, 1, 1, &want);
        error.logits.Add(Centered(a, b));
      }
      for (int row = 0; row < config_.hidden; ++row) {
        double difference = 0, whole = 0;
        for (int i = 0; i < config_.q_dim(); ++i) {
          difference += wo_[row * config_.q_dim() + i] * (found[i] - want[i]);
          whole += wo_[row * config_.q_dim() + i] * want[i];
        }
        error.output.Add({difference * difference, whole * whole});
      }
    }
    return error;
  }

 private:
  void Rotate(size_t position, std::vector<double>* x) const {
    const int half = config_.head_dim / 2;
    for (size_t head = 0; head < x->size(); head += config_.head_dim) {
      for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * std::pow(500000.0, -double(i) / half);
        const double a = (*x)[head + i], b = (*x)[head + i + half];
        (*x)[head + i] = a * std::cos(angle) - b * std::sin(angle);
        (*x)[head + i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  std::vector<double> Attend(size_t query, int head, double k_scale, double v_scale,
                             std::vector<double>* out) const {
    const int dim = config_.head_dim, kv = head / (config_.heads / config_.kv_heads) * dim;
    std::vector<double> logits, weights;
    double total = 0;
    for (size_t t = 0; t <= query; ++t) {
      double sum = 0;
      for (int d = 0; d < dim; ++d) sum += states_.q[query][head * dim + d] * states_.k[t][kv + d];
      logits.push_back(sum / std::sqrt(dim) * (t < kHandedOver ? k_scale : 1));
      weights.push_back(std::exp(logits.back()));
      total += weights.back();
    }
    for (int d = 0; d < dim; ++d) {
      double sum = 0;
      for (size_t t = 0; t <= query; ++t) {
        sum += weights[t] / total * states_.v[t][kv + d] * (t < kHandedOver ? v_scale : 1);
      }
      (*out)[head * dim + d] = sum;
    }
    return logits;
  }

  static ErrorSum Centered(const std::vector<double>& a, const std::vector<double>& b) {
    double mean_a = 0, mean_b = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      mean_a += a[i] / double(a.size());
      mean_b += b[i] / double(a.size());
    }
    ErrorSum sum;
    for (size_t i = 0; i < a.size(); ++i) {
      sum.Add({std::pow(a[i] - mean_a - b[i] + mean_b, 2), std::pow(b[i] - mean_b, 2)});
    }
    return sum;
  }

  const ModelConfig& config_;
  Capture states_;
  std::vector<double> wo_;
};

class LayerErrors : public ::testing::Test {
 protected:
  LayerErrors() : model_("deploy/demo/chat", {.compute = DType::kF32}, DType::kF32, 80) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(10 + 7 * i % 500);
    const absl::Span<const int32_t> prompt = prompt_;
    model_.Run(prompt.first(kHandedOver), &capture_);
    answer_ = AnswerGreedily(model_.model(), model_.pool(), model_.table().ids(), prompt_, 4).value();
    meter_ = LayerErrorMeter::Create(model_.model(), model_.pool(), model_.pool()).value();
    EXPECT_TRUE(meter_->RememberOracle(model_.table().ids(), prompt_, answer_).ok());
  }

  // Multiplies keys and values of the layer under test, for the first `tokens` tokens.
  void Scale(int64_t tokens, float k_scale, float v_scale) {
    const PagedKv kv = model_.pool().Layer(kLayer);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t block = model_.table().ids()[t / kv.block_tokens];
      for (int head = 0; head < kv.kv_heads; ++head) {
        const int64_t at =
            ((block * kv.kv_heads + head) * kv.block_tokens + t % kv.block_tokens) * kv.head_dim;
        for (int d = 0; d < kv.head_dim; ++d) {
          static_cast<float*>(kv.k)[at + d] *= k_scale;
          static_cast<float*>(kv.v)[at + d] *= v_scale;
        }
      }
    }
  }

  TestModel model_;
  std::vector<int32_t> prompt_;
  Capture capture_;
  Answer answer_;
  std::unique_ptr<LayerErrorMeter> meter_;
};

TEST_F(LayerErrors, AreZeroForTheOraclesOwnCache) {
  const auto errors = meter_->Measure(model_.table().ids(), 0, kHandedOver);
  ASSERT_TRUE(errors.ok()) << errors.status();
  for (const LayerError& error : *errors) {
    EXPECT_EQ(error.k.error + error.v.error + error.logits.error + error.output.error, 0);
    EXPECT_GT(error.logits.energy, 0);
  }
}

TEST_F(LayerErrors, AgreeWithTheEquationsInDouble) {
  // The oracle's states at the last prompt token and its answer, as the meter saw them.
  ASSERT_TRUE(
      CompareWithOracle(model_.model(), model_.pool(), model_.table().ids(), prompt_, answer_, &capture_)
          .ok());
  const LayerError want = Reference(model_.model().config(), capture_).Measure(1.25, 0.5);
  Scale(kHandedOver, 1.25f, 0.5f);
  const auto errors = meter_->Measure(model_.table().ids(), 0, kHandedOver);
  ASSERT_TRUE(errors.ok()) << errors.status();
  const LayerError& found = (*errors)[kLayer];
  EXPECT_NEAR(found.k.ratio(), 0.0625, 1e-6);
  EXPECT_NEAR(found.v.ratio(), 0.25, 1e-6);
  EXPECT_NEAR(found.logits.ratio(), want.logits.ratio(), 1e-4 * want.logits.ratio());
  EXPECT_NEAR(found.output.ratio(), want.output.ratio(), 1e-4 * want.output.ratio());
  EXPECT_EQ((*errors)[kLayer - 1].output.error, 0);
}

TEST_F(LayerErrors, LeaveOutTokensThatWereNotHandedOver) {
  Scale(8, 3.0f, 3.0f);
  const auto errors = meter_->Measure(model_.table().ids(), 8, kHandedOver);
  ASSERT_TRUE(errors.ok()) << errors.status();
  EXPECT_EQ((*errors)[kLayer].output.error, 0);
}

}  // namespace
}  // namespace aludel
