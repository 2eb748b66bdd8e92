#include "runtime/calibrate/aludel/tune_decoder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

constexpr char kModel[] = "tests/runtime/model/golden/tiny/qwen3_qk_norm";
constexpr int kInputs = 3;
constexpr int kWidth = 4;

bool Always(absl::string_view, int64_t, int64_t) { return true; }

// A tiny model's cache of two prompts, and a decoder of its last layer with random weights, whose inputs are
// the first columns of that cache.
struct TuneCase {
  int64_t head;  // tokens at a prompt's head that are never coded
  bool linear;   // a decoder without a network
};

class TuneDecoder : public ::testing::TestWithParam<TuneCase> {
 protected:
  TuneDecoder() : consumer_(CacheGradient::Load(kModel).value()) {
    std::string pattern = ::testing::TempDir() + "/tuneXXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    TestModel model(kModel, {.compute = DType::kF32}, DType::kF32, 64);
    own_ = OpenStates(directory_, model.model(), prompts_, 0, GetParam().head, "prefill", Always).value();
    const int kv_dim = static_cast<int>(consumer_->config().kv_dim());
    const int64_t outputs = 2 * kv_dim;
    group_.first_column = (consumer_->config().layers - 1) * outputs;
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    const auto noise = [&](int64_t count, float scale) {
      std::vector<float> values(count);
      for (float& value : values) value = scale * normal(random);
      return values;
    };
    group_.mean = noise(outputs, 0.1f);
    group_.scale = std::vector<float>(outputs, 0.7f);
    group_.net.bias = noise(outputs, 0.3f);
    if (GetParam().linear) {
      group_.net.linear = {outputs, kInputs, noise(outputs * kInputs, 0.5f)};
    } else {
      group_.net.hidden = {kWidth, kInputs, noise(kWidth * kInputs, 1.0f)};
      group_.net.hidden_bias = noise(kWidth, 0.5f);
      group_.net.out = {outputs, kWidth, noise(outputs * kWidth, 0.5f)};
    }
    text_.own = own_.get();
    text_.inputs = {[this](int64_t begin, int64_t count, float* u) {
      for (int64_t t = 0; t < count; ++t) own_->Read(begin + t, 0, kInputs, u + t * kInputs);
    }};
    answers_ = AnswerPrompts(*consumer_, *own_, prompts_, 4, Always).value();
    text_.prompts = answers_;
  }
  ~TuneDecoder() override { std::filesystem::remove_all(directory_); }

  std::vector<float> Exact(const TuningPrompt& prompt) const {
    const int64_t columns = consumer_->columns();
    std::vector<float> cache(prompt.cached() * columns);
    for (int64_t t = 0; t < prompt.cached(); ++t) {
      const int64_t head = GetParam().head;
      const int64_t row = t < head ? prompt.head_row + t : prompt.first_row + t - head;
      own_->Read(row, 0, columns, cache.data() + t * columns);
    }
    return cache;
  }

  // The prompt's cache, its last layer decoded by the equations, in double, behind the head.
  std::vector<float> Decoded(const DecoderNet& net, const TuningPrompt& prompt) const {
    const int64_t columns = consumer_->columns();
    std::vector<float> cache = Exact(prompt);
    for (int64_t t = GetParam().head; t < prompt.cached(); ++t) {
      float* row = cache.data() + t * columns;
      std::vector<double> hidden;
      for (int64_t j = 0; j < net.hidden.rows; ++j) {
        double x = net.hidden_bias[j];
        for (int64_t i = 0; i < kInputs; ++i) x += static_cast<double>(net.hidden.row(j)[i]) * row[i];
        hidden.push_back(x / (1.0 + std::exp(-x)));
      }
      for (size_t k = 0; k < group_.mean.size(); ++k) {
        double y = net.bias[k];
        for (int64_t j = 0; j < net.hidden.rows; ++j) y += static_cast<double>(net.out.row(k)[j]) * hidden[j];
        for (int64_t i = 0; i < net.linear.cols; ++i) y += static_cast<double>(net.linear.row(k)[i]) * row[i];
        row[group_.first_column + k] = static_cast<float>(group_.mean[k] + group_.scale[k] * y);
      }
    }
    return cache;
  }

  // KL per answer token over all prompts, from logits alone.
  double Kl(const DecoderNet& net) {
    double sum = 0, tokens = 0;
    for (const TuningPrompt& prompt : answers_) {
      std::vector<int32_t> tail = {prompt.ids.back()};
      tail.insert(tail.end(), prompt.answer.begin(), prompt.answer.end() - 1);
      const std::vector<float> exact = Exact(prompt), decoded = Decoded(net, prompt);
      std::vector<float> p, q;
      EXPECT_TRUE(consumer_->Logits({exact, prompt.cached(), tail}, &p).ok());
      EXPECT_TRUE(consumer_->Logits({decoded, prompt.cached(), tail}, &q).ok());
      const auto vocab = static_cast<size_t>(consumer_->config().vocab);
      for (size_t at = 0; at < p.size(); at += vocab) {
        double p_sum = 0, q_sum = 0;
        for (size_t v = 0; v < vocab; ++v) {
          p_sum += std::exp(static_cast<double>(p[at + v]));
          q_sum += std::exp(static_cast<double>(q[at + v]));
        }
        for (size_t v = 0; v < vocab; ++v) {
          const double log_p = p[at + v] - std::log(p_sum), log_q = q[at + v] - std::log(q_sum);
          sum += std::exp(log_p) * (log_p - log_q);
        }
      }
      tokens += static_cast<double>(tail.size());
    }
    return sum / tokens;
  }

  std::string directory_;
  std::unique_ptr<CacheGradient> consumer_;
  const std::vector<std::vector<int32_t>> prompts_ = {{1, 5, 9, 33, 70, 12, 40}, {1, 44, 3, 8, 61}};
  std::unique_ptr<StateFile> own_;
  TunedGroup group_;
  TuningText text_;
  std::vector<TuningPrompt> answers_;
};

TEST_P(TuneDecoder, AnswersAreGreedyAndLieInTheirRows) {
  ASSERT_EQ(answers_.size(), 2);
  const int64_t head = GetParam().head;
  EXPECT_EQ(own_->rows(), 12 - 2 * head);
  EXPECT_EQ(answers_[0].first_row, 0);
  EXPECT_EQ(answers_[1].first_row, 7 - head);
  EXPECT_EQ(answers_[0].head_row, own_->rows());
  EXPECT_EQ(answers_[1].head_row, own_->rows() + head);
  const std::vector<int32_t> ids = RowIds(prompts_, head);
  ASSERT_EQ(static_cast<int64_t>(ids.size()), own_->rows());
  EXPECT_EQ(ids.front(), prompts_[0][head]);
  EXPECT_EQ(ids[7 - head], prompts_[1][head]);
  for (const TuningPrompt& prompt : answers_) {
    ASSERT_GE(prompt.answer.size(), 1);
    ASSERT_LE(prompt.answer.size(), 4);
    const std::vector<float> cache = Exact(prompt);
    std::vector<float> logits;
    std::vector<int32_t> tail = {prompt.ids.back()};
    tail.insert(tail.end(), prompt.answer.begin(), prompt.answer.end() - 1);
    ASSERT_TRUE(consumer_->Logits({cache, prompt.cached(), tail}, &logits).ok());
    const auto vocab = consumer_->config().vocab;
    for (size_t i = 0; i < prompt.answer.size(); ++i) {
      const auto row = logits.begin() + static_cast<int64_t>(i) * vocab;
      EXPECT_EQ(prompt.answer[i], std::max_element(row, row + vocab) - row);
    }
  }
}

// One step of Adam moves every weight against the sign of its slope, by the rate.
TEST_P(TuneDecoder, OneStepGoesDownTheSlopeOfTheKlOfLogits) {
  const DecoderTuning tuning{.batch = 2, .learning_rate = 1e-2, .stretch_weight = 0};
  DecoderTuner tuner({group_}, tuning, 2);
  const auto kl = tuner.Pass(*consumer_, text_, Always);
  ASSERT_TRUE(kl.ok()) << kl.status();
  EXPECT_NEAR(*kl, Kl(group_.net), 1e-4 * (1 + *kl));
  const DecoderNet after = std::move(tuner).TakeGroups()[0].net;
  int checked = 0;
  const auto check = [&](std::vector<float> DecoderNet::*bias, HostMatrix DecoderNet::*matrix) {
    const auto values = [&](DecoderNet& net) -> std::vector<float>& {
      return matrix != nullptr ? (net.*matrix).values : net.*bias;
    };
    DecoderNet net = group_.net;
    DecoderNet moved = after;
    for (size_t i = 0; i < values(net).size(); ++i) {
      const float kept = values(net)[i];
      constexpr float kStep = 2e-2f;
      values(net)[i] = kept + kStep;
      const double above = Kl(net);
      values(net)[i] = kept - kStep;
      const double below = Kl(net);
      values(net)[i] = kept;
      const double slope = (above - below) / (2 * kStep);
      if (std::abs(slope) < 2e-3) continue;  // too flat for a difference of f32 logits
      ++checked;
      EXPECT_NEAR(values(moved)[i] - kept, slope > 0 ? -1e-2 : 1e-2, 2e-4) << i << ": " << slope;
    }
  };
  check(nullptr, &DecoderNet::linear);
  check(nullptr, &DecoderNet::hidden);
  check(&DecoderNet::hidden_bias, nullptr);
  check(nullptr, &DecoderNet::out);
  check(&DecoderNet::bias, nullptr);
  EXPECT_GT(checked, 20);
}

TEST_P(TuneDecoder, LowersTheKlAndIsTheSameForTheSameSeed) {
  DecoderTuning tuning{.batch = 1, .learning_rate = 1e-2, .stretch = 2, .seed = 7};
  const auto tuned = [&] {
    DecoderTuner tuner({group_}, tuning, 400);
    for (int pass = 0; pass < 200; ++pass) EXPECT_TRUE(tuner.Pass(*consumer_, text_, Always).ok());
    return std::move(tuner).TakeGroups()[0].net;
  };
  const DecoderNet first = tuned();
  EXPECT_LT(Kl(first), 0.5 * Kl(group_.net));
  const DecoderNet second = tuned();
  EXPECT_EQ(second.linear.values, first.linear.values);
  EXPECT_EQ(second.out.values, first.out.values);
}

TEST_P(TuneDecoder, ATuningThatIsResumedBetweenTwoPassesEndsWithTheSameBytes) {
  const DecoderTuning tuning{.batch = 1, .learning_rate = 1e-2, .stretch = 2, .seed = 7};
  DecoderTuner whole({group_}, tuning, 8);
  std::vector<std::vector<float>> kept;
  DecoderTuner::Course course;
  for (int pass = 0; pass < 4; ++pass) {
    if (pass == 2) {
      for (const std::vector<float>* values : whole.Weights()) kept.push_back(*values);
      course = whole.course();
    }
    ASSERT_TRUE(whole.Pass(*consumer_, text_, Always).ok());
  }
  EXPECT_EQ(course.step, 4);
  EXPECT_GT(course.draws, 2) << "orders and stretches";
  DecoderTuner resumed({group_}, tuning, 8);
  const WeightList weights = resumed.Weights();
  ASSERT_EQ(weights.size(), kept.size());
  for (size_t i = 0; i < kept.size(); ++i) *weights[i] = kept[i];
  resumed.Resume(course);
  for (int pass = 2; pass < 4; ++pass) ASSERT_TRUE(resumed.Pass(*consumer_, text_, Always).ok());
  const DecoderNet want = std::move(whole).TakeGroups()[0].net, got = std::move(resumed).TakeGroups()[0].net;
  EXPECT_EQ(got.linear.values, want.linear.values);
  EXPECT_EQ(got.hidden.values, want.hidden.values);
  EXPECT_EQ(got.out.values, want.out.values);
  EXPECT_EQ(got.bias, want.bias);
  EXPECT_NE(want.bias, group_.net.bias);
}

TEST_P(TuneDecoder, StopsWhenAsked) {
  DecoderTuner tuner({group_}, {}, 2);
  const auto status =
      tuner.Pass(*consumer_, text_, [](absl::string_view, int64_t, int64_t) { return false; });
  EXPECT_EQ(status.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(
      AnswerPrompts(*consumer_, *own_, prompts_, 4, [](absl::string_view, int64_t, int64_t) { return false; })
          .status()
          .code(),
      absl::StatusCode::kCancelled);
}

// Where no rate is asked for it is the kind's own; the first of ten steps takes all of it.
TEST_P(TuneDecoder, TakesTheRateOfItsKind) {
  DecoderTuner tuner({group_}, {.batch = 2, .stretch_weight = 0}, 20);
  ASSERT_TRUE(tuner.Pass(*consumer_, text_, Always).ok());
  const DecoderNet after = std::move(tuner).TakeGroups()[0].net;
  float moved = 0;
  for (size_t j = 0; j < after.bias.size(); ++j) {
    moved = std::max(moved, std::abs(after.bias[j] - group_.net.bias[j]));
  }
  const double rate = GetParam().linear ? kLinearRate : kNetworkRate;
  EXPECT_NEAR(moved, rate, 0.02 * rate);
}

INSTANTIATE_TEST_SUITE_P(Cases, TuneDecoder,
                         ::testing::Values(TuneCase{0, false}, TuneCase{2, false}, TuneCase{0, true},
                                           TuneCase{2, true}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.linear ? "Linear" : "Network", "Head",
                                               info.param.head);
                         });

}  // namespace
}  // namespace aludel
