#include "runtime/calibrate/aludel/tune_passages.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/fit/dense.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int kInputs = 3;
constexpr int64_t kHead = 2;
constexpr int kMostAnswer = 4;

bool Always(absl::string_view, int64_t, int64_t) { return true; }

TEST(Passages, ShareWhatTheirPromptsBeginWith) {
  const std::vector<std::vector<int32_t>> prompts = {
      {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 7}, {1, 2, 3, 9, 9, 9}, {1, 2, 8, 8, 8, 8}, {1, 2, 8, 8, 8, 8}, {5}};
  const std::vector<Passage> passages = GroupPassages(prompts, 8, 0);
  ASSERT_EQ(passages.size(), 3);
  EXPECT_THAT(passages[0].ids, ElementsAre(1, 2, 3, 4, 5, 6, 4, 7, 9, 9, 9))
      << "a trunk of three, three branches";
  EXPECT_THAT(passages[0].branches, ElementsAre(3, 6, 8));
  EXPECT_EQ(passages[0].end(0), 6);
  EXPECT_EQ(passages[0].end(2), 11);
  EXPECT_THAT(passages[1].ids, ElementsAre(1, 2, 8, 8, 8, 8, 8))
      << "equal prompts keep a branch of one token";
  EXPECT_THAT(passages[2].ids, ElementsAre(5));
  EXPECT_EQ(passages[2].trunk(), 0);
  EXPECT_EQ(GroupPassages(prompts, 2, 0)[0].branches.size(), 2) << "no more branches than asked for";
}

// A tiny model, three passages of several prompts, and a decoder of its last layer whose inputs are the first columns
// of the model's own cache.
class TunePassages : public ::testing::TestWithParam<const char*> {
 protected:
  TunePassages() : consumer_(CacheGradient::Load(GetParam()).value()) {
    std::string pattern = ::testing::TempDir() + "/passagesXXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    TestModel model(GetParam(), {.compute = DType::kF32}, DType::kF32, 64);
    single_ = OpenStates(directory_, model.model(), prompts_, 0, 0, "prefill", Always).value();
    Group(model.model(), /*tail=*/0);
    const int64_t outputs = int64_t{2} * consumer_->config().kv_dim();
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
    group_.net.linear = {outputs, kInputs, noise(outputs * kInputs, 0.5f)};
    inputs_ = {[this](int64_t begin, int64_t count, float* u) {
      for (int64_t t = 0; t < count; ++t) own_->Read(begin + t, 0, kInputs, u + t * kInputs);
    }};
  }

  // Of every prompt the consumer recomputes so many tokens in front of the last.
  void Group(Transformer& model, int64_t tail) {
    passages_ = GroupPassages(prompts_, 8, tail);
    own_ = OpenPassageStates(directory_, model, passages_, 0, "prefill", Always).value();
    answers_ = Answers();
    text_.clear();
    int64_t row = 0;
    for (size_t p = 0; p < passages_.size(); ++p) {
      if (tail > 0) answers_[p].RecomputeTails(passages_[p], tail);
      text_.push_back({own_.get(), &inputs_, &passages_[p], &answers_[p], row});
      row += passages_[p].tokens();
    }
  }
  ~TunePassages() override { std::filesystem::remove_all(directory_); }

  std::vector<PassageAnswers> Answers() {
    return OpenPassageAnswers(directory_, "tiny", *consumer_, *own_, passages_, kMostAnswer, Always).value();
  }
  PassageTuner Tuner(const PassageTuning& tuning, const std::string& checkpoint = "") {
    return PassageTuner({group_}, tuning, checkpoint,
                        [this](const TuningState& state) { seen_.push_back(state); });
  }

  // The mean KL over the answers to the prompts of passage `p`, each prompt on its own: its cache from a file of single
  // prompts, the last layer decoded by the equations, in double.
  double Kl(const DecoderNet& net, const LowRank& correction, size_t p) {
    const int64_t columns = consumer_->columns();
    const auto vocab = static_cast<size_t>(consumer_->config().vocab);
    double sum = 0, tokens = 0;
    int64_t first = 0;
    for (size_t i = 0, passage = 0, branch = 0; i < prompts_.size(); ++i) {
      const int64_t fed = answers_[passage].recomputed.empty() ? 0 : answers_[passage].recomputed[branch];
      const auto cached = static_cast<int64_t>(prompts_[i].size()) - 1 - fed;
      if (passage == p) {
        std::vector<float> exact(cached * columns);
        for (int64_t t = 0; t < cached; ++t) single_->Read(first + t, 0, columns, exact.data() + t * columns);
        const std::vector<float> decoded = Decoded(net, correction, exact);
        const std::vector<int32_t>& tail = answers_[p].tails[branch];
        std::vector<float> want, got;
        EXPECT_TRUE(consumer_->Logits({exact, cached, tail}, &want).ok());
        EXPECT_TRUE(consumer_->Logits({decoded, cached, tail}, &got).ok());
        for (size_t at = static_cast<size_t>(fed) * vocab; at < want.size(); at += vocab) {
          sum += KlOfRow(&want[at], &got[at], vocab);
        }
        tokens += static_cast<double>(tail.size()) - static_cast<double>(fed);
      }
      first += static_cast<int64_t>(prompts_[i].size());
      if (++branch == passages_[passage].branches.size()) {
        ++passage;
        branch = 0;
      }
    }
    return sum / tokens;
  }

  static double KlOfRow(const float* p, const float* q, size_t vocab) {
    double p_sum = 0, q_sum = 0, kl = 0;
    for (size_t v = 0; v < vocab; ++v) {
      p_sum += std::exp(static_cast<double>(p[v]));
      q_sum += std::exp(static_cast<double>(q[v]));
    }
    for (size_t v = 0; v < vocab; ++v) {
      const double log_p = p[v] - std::log(p_sum);
      kl += std::exp(log_p) * (log_p - (q[v] - std::log(q_sum)));
    }
    return kl;
  }

  void ExpectGradientOfFiniteDifferences(int fewest);

  std::vector<float> Decoded(const DecoderNet& net, const LowRank& c, std::vector<float> cache) const {
    const int64_t columns = consumer_->columns();
    for (int64_t t = kHead; t * columns < static_cast<int64_t>(cache.size()); ++t) {
      float* row = cache.data() + t * columns;
      std::vector<double> inner(c.down.rows);
      for (int64_t r = 0; r < c.down.rows; ++r) {
        for (int64_t i = 0; i < kInputs; ++i) inner[r] += static_cast<double>(c.down.row(r)[i]) * row[i];
      }
      std::vector<double> out(group_.mean.size());
      for (size_t k = 0; k < out.size(); ++k) {
        out[k] = static_cast<double>(net.bias[k]) + c.bias[k];
        for (int64_t i = 0; i < kInputs; ++i) out[k] += static_cast<double>(net.linear.row(k)[i]) * row[i];
        for (int64_t r = 0; r < c.down.rows; ++r) out[k] += static_cast<double>(c.up.row(k)[r]) * inner[r];
      }
      for (size_t k = 0; k < out.size(); ++k) {
        row[group_.first_column + k] = static_cast<float>(group_.mean[k] + group_.scale[k] * out[k]);
      }
    }
    return cache;
  }

  std::string directory_;
  std::unique_ptr<CacheGradient> consumer_;
  const std::vector<std::vector<int32_t>> prompts_ = {
      {1, 5, 9, 33, 70, 12, 40, 8}, {1, 5, 9, 33, 70, 3}, {1, 5, 9, 33, 70, 12, 61, 7, 2},  // one passage
      {1, 44, 3, 8, 61, 17},        {1, 44, 3, 8, 59},                                      // another
      {1, 7, 79, 21, 6, 35, 4},                                                             // a prompt alone
  };
  std::vector<Passage> passages_;
  std::unique_ptr<StateFile> own_, single_;
  std::vector<PassageAnswers> answers_;
  TunedGroup group_;
  std::vector<TuningText::Inputs> inputs_;
  std::vector<TuningPassage> text_;
  std::vector<TuningState> seen_;
};

TEST_P(TunePassages, StatesAreThoseOfThePromptsAlone) {
  ASSERT_EQ(passages_.size(), 3);
  EXPECT_EQ(passages_[0].trunk(), 5);
  const int64_t columns = consumer_->columns();
  std::vector<float> packed(columns), alone(columns);
  int64_t first = 0, row = 0;
  for (size_t i = 0, p = 0, b = 0; i < prompts_.size(); ++i) {
    const int64_t trunk = passages_[p].trunk();
    for (int64_t t = 0; t < static_cast<int64_t>(prompts_[i].size()); ++t) {
      own_->Read(row + (t < trunk ? t : passages_[p].branches[b] + t - trunk), 0, columns, packed.data());
      single_->Read(first + t, 0, columns, alone.data());
      for (int64_t j = 0; j < columns; ++j) {
        ASSERT_NEAR(packed[j], alone[j], 0.01 * (0.1 + std::abs(alone[j])))
            << "prompt " << i << ", token " << t;
      }
    }
    first += static_cast<int64_t>(prompts_[i].size());
    if (++b == passages_[p].branches.size()) {
      row += passages_[p].tokens();
      b = 0;
      ++p;
    }
  }
}

TEST_P(TunePassages, AnswersAreTheGreedyOnesAndComeBackFromTheirFile) {
  const auto alone = AnswerPrompts(*consumer_, *single_, prompts_, kMostAnswer, Always).value();
  ASSERT_EQ(alone.size(), prompts_.size());
  std::vector<std::vector<int32_t>> tails;
  for (const PassageAnswers& answers : answers_) {
    tails.insert(tails.end(), answers.tails.begin(), answers.tails.end());
  }
  ASSERT_EQ(tails.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    std::vector<int32_t> want = {prompts_[i].back()};
    want.insert(want.end(), alone[i].answer.begin(), alone[i].answer.end() - 1);
    EXPECT_EQ(tails[i], want) << i;
  }
  for (const PassageAnswers& answers : answers_) {
    for (const auto& target : answers.targets) {
      double mass = 0;
      for (const auto& [id, log_probability] : target) mass += std::exp(log_probability);
      EXPECT_NEAR(mass, 1.0, 1e-4);
    }
  }
  const std::vector<PassageAnswers> again = Answers();
  for (size_t p = 0; p < again.size(); ++p) {
    EXPECT_EQ(again[p].tails, answers_[p].tails);
    EXPECT_EQ(again[p].targets, answers_[p].targets);
  }
}

// All prompts of a passage in one pass have the KL that they have one by one, and the gradient is that of finite
// differences of it.
void TunePassages::ExpectGradientOfFiniteDifferences(int fewest) {
  PassageTuner tuner = Tuner({.rank = 2, .head = kHead});
  LowRank correction = tuner.corrections()[0];
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  for (std::vector<float>* values : WeightsOf(&correction)) {
    for (float& value : *values) value = 0.4f * normal(random);
  }
  tuner.corrections()[0] = correction;
  std::vector<LowRank> gradients = {{HostMatrix::Zeros(2, kInputs), HostMatrix::Zeros(correction.up.rows, 2),
                                     std::vector<float>(correction.bias.size())}};
  constexpr float kWeight = 0.5f;
  for (size_t p = 0; p < 2; ++p) {
    const auto kl = tuner.AddGradient(*consumer_, text_[p], kWeight, &gradients);
    ASSERT_TRUE(kl.ok()) << kl.status();
    EXPECT_NEAR(*kl, Kl(group_.net, correction, p), 2e-2 * *kl) << "states are bf16";
  }
  const WeightList slopes = WeightsOf(&gradients[0]);
  const WeightList weights = WeightsOf(&correction);
  int checked = 0;
  for (size_t list = 0; list < weights.size(); ++list) {
    for (size_t i = 0; i < weights[list]->size(); ++i) {
      float& value = (*weights[list])[i];
      const float kept = value;
      constexpr float kStep = 2e-2f;
      const auto at = [&](float moved) {
        value = moved;
        return Kl(group_.net, correction, 0) + Kl(group_.net, correction, 1);
      };
      const double slope =
          kWeight *
          (8 * (at(kept + kStep) - at(kept - kStep)) - (at(kept + 2 * kStep) - at(kept - 2 * kStep))) /
          (12 * kStep);
      value = kept;
      if (std::abs(slope) < 5e-4) continue;  // too flat for a difference of f32 logits
      ++checked;
      EXPECT_NEAR((*slopes[list])[i], slope, 0.05 * std::abs(slope) + 2e-4) << list << " " << i;
    }
  }
  EXPECT_GE(checked, fewest);
}

TEST_P(TunePassages, TheGradientOfACorrectionIsThatOfFiniteDifferences) {
  ExpectGradientOfFiniteDifferences(/*fewest=*/21);
}

// The consumer computes the end of each prompt over what is decoded of the rest.
TEST_P(TunePassages, TheGradientWithRecomputedTailsIsThatOfFiniteDifferences) {
  constexpr int64_t kTail = 2;
  TestModel model(GetParam(), {.compute = DType::kF32}, DType::kF32, 64);
  Group(model.model(), kTail);
  ASSERT_EQ(passages_.size(), 3u);
  EXPECT_THAT(passages_[0].branches, ElementsAre(3, 8, 11))
      << "the trunk leaves the shortest prompt its tail";
  for (const PassageAnswers& answers : answers_) {
    EXPECT_THAT(answers.recomputed, Each(kTail));
    EXPECT_EQ(answers.answered() + kTail * static_cast<int64_t>(answers.tails.size()),
              static_cast<int64_t>(answers.targets.size()));
  }
  EXPECT_EQ(answers_[0].tails[0][kTail], prompts_[0].back());
  ExpectGradientOfFiniteDifferences(/*fewest=*/10);  // less of the cache is decoded, and slopes are flatter
  // What is judged before the first step is the same loss.
  PassageTuner tuner = Tuner({.rank = 2, .batch = 1, .head = kHead});
  const auto run = tuner.Run(*consumer_, {text_[0]}, {text_[1]}, Always);
  ASSERT_TRUE(run.ok()) << run.status();
  const double want = Kl(group_.net, Tuner({.rank = 2, .head = kHead}).corrections()[0], 1);
  EXPECT_NEAR(run->first_kl, want, 2e-2 * want);
}

TEST_P(TunePassages, KeepsTheStepThatHeldOutPassagesLikeBest) {
  const std::vector<TuningPassage> train(text_.begin(), text_.begin() + 2),
      held_out(text_.begin() + 2, text_.end());
  PassageTuner tuner = Tuner({.rank = 2, .epochs = 100, .batch = 2, .learning_rate = 2e-2, .head = kHead});
  const auto state = tuner.Run(*consumer_, train, held_out, Always);
  ASSERT_TRUE(state.ok()) << state.status();
  const LowRank none = StartLowRank(1, kInputs, static_cast<int64_t>(group_.mean.size()), 1);
  EXPECT_NEAR(state->first_kl, Kl(group_.net, none, 2), 2e-2 * state->first_kl);
  EXPECT_LT(state->best_kl, 0.98 * state->first_kl);
  ASSERT_GE(seen_.size(), 2);
  double best = std::numeric_limits<double>::infinity();
  for (const TuningState& seen : seen_) best = std::min(best, seen.held_out_kl);
  EXPECT_EQ(state->best_kl, best);
  const DecoderNet tuned = std::move(tuner).TakeGroups()[0].net;
  EXPECT_NEAR(Kl(tuned, none, 2), best, 2e-2 * best) << "what is merged says what was measured";
}

// A rate at which nothing can get better.
TEST_P(TunePassages, LeavesADecoderAloneThatTuningMakesWorse) {
  const std::vector<TuningPassage> train(text_.begin(), text_.begin() + 2),
      held_out(text_.begin() + 2, text_.end());
  PassageTuner tuner = Tuner({.rank = 2, .epochs = 400, .learning_rate = 1e3, .head = kHead});
  const auto state = tuner.Run(*consumer_, train, held_out, Always);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->best_step, 0);
  EXPECT_LT(state->step, state->steps) << "ends early";
  const DecoderNet tuned = std::move(tuner).TakeGroups()[0].net;
  EXPECT_EQ(tuned.linear.values, group_.net.linear.values);
  EXPECT_EQ(tuned.bias, group_.net.bias);
}

TEST_P(TunePassages, AnInterruptedRunEndsWithTheBytesOfAnUninterruptedOne) {
  const std::vector<TuningPassage> train(text_.begin(), text_.begin() + 2),
      held_out(text_.begin() + 2, text_.end());
  const PassageTuning tuning{.rank = 2, .epochs = 12, .batch = 1, .learning_rate = 1e-2, .head = kHead};
  PassageTuner whole = Tuner(tuning);
  ASSERT_TRUE(whole.Run(*consumer_, train, held_out, Always).ok());
  const DecoderNet want = std::move(whole).TakeGroups()[0].net;
  const std::string checkpoint = directory_ + "/run.tuning";
  int interruptions = 0;
  for (;; ++interruptions) {
    ASSERT_LT(interruptions, 20);
    PassageTuner tuner = Tuner(tuning, checkpoint);
    int calls = 0;
    const auto state = tuner.Run(*consumer_, train, held_out,
                                 [&](absl::string_view, int64_t, int64_t) { return ++calls < 8; });
    if (!state.ok()) {
      ASSERT_EQ(state.status().code(), absl::StatusCode::kCancelled);
      continue;
    }
    const DecoderNet got = std::move(tuner).TakeGroups()[0].net;
    EXPECT_EQ(got.linear.values, want.linear.values);
    EXPECT_EQ(got.bias, want.bias);
    break;
  }
  EXPECT_GE(interruptions, 2);
}

TEST_P(TunePassages, EndsWhenItsTimeIsOver) {
  const std::vector<TuningPassage> train(text_.begin(), text_.begin() + 2),
      held_out(text_.begin() + 2, text_.end());
  PassageTuner tuner =
      Tuner({.rank = 2, .epochs = 1000, .batch = 1, .head = kHead, .patience = 1000, .minutes = 1e-4});
  const auto state = tuner.Run(*consumer_, train, held_out, Always);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_LT(state->step, state->steps);
  EXPECT_EQ(seen_.back().step, state->step) << "its last step is judged, too";
}

TEST_P(TunePassages, EndsAtTheStepThatItsTimeIsOverAt) {
  const std::vector<TuningPassage> train(text_.begin(), text_.begin() + 2),
      held_out(text_.begin() + 2, text_.end());
  PassageTuning tuning{.rank = 2, .epochs = 1000, .batch = 1, .head = kHead, .patience = 1000};
  int asked = 0;
  tuning.time_is_up = [&asked] { return ++asked == 3; };
  PassageTuner tuner = Tuner(tuning);
  const auto state = tuner.Run(*consumer_, train, held_out, Always);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, 3);
  EXPECT_EQ(seen_.back().step, 3) << "which is judged, too";
}

// Matrices in bf16 say nearly the same, forward and back.
TEST_P(TunePassages, RunsWithMatricesInBf16) {
  const auto narrow = CacheGradient::Load(GetParam(), 0, DType::kBf16).value();
  std::vector<LowRank> wide_slopes, narrow_slopes;
  double kl[2];
  for (const bool is_narrow : {false, true}) {
    PassageTuner tuner = Tuner({.rank = 2, .head = kHead});
    std::vector<LowRank>& slopes = is_narrow ? narrow_slopes : wide_slopes;
    slopes = {{HostMatrix::Zeros(2, kInputs), HostMatrix::Zeros(tuner.corrections()[0].up.rows, 2),
               std::vector<float>(group_.mean.size())}};
    kl[is_narrow] = tuner.AddGradient(is_narrow ? *narrow : *consumer_, text_[0], 1.0f, &slopes).value();
  }
  EXPECT_NEAR(kl[1], kl[0], 0.05 * kl[0]);
  double dot = 0, wide = 0, other = 0;
  for (size_t i = 0; i < wide_slopes[0].up.values.size(); ++i) {
    const double a = wide_slopes[0].up.values[i], b = narrow_slopes[0].up.values[i];
    dot += a * b;
    wide += a * a;
    other += b * b;
  }
  EXPECT_GT(dot / std::sqrt(wide * other), 0.99);
}

INSTANTIATE_TEST_SUITE_P(Models, TunePassages,
                         ::testing::Values("tests/runtime/model/golden/tiny/qwen3_qk_norm",
                                           "tests/runtime/model/golden/tiny/mistral_sliding"),
                         [](const auto& info) {
                           return std::string(std::filesystem::path(info.param).filename());
                         });

// c of small integers, which bf16 holds: exact either way.
TEST(ModelMatrix, MultipliesForwardAndBackInBothTypes) {
  constexpr int64_t kRows = 300, kCols = 40, kCount = 5;  // more rows than a piece that is widened
  std::mt19937_64 random(3);
  const auto draw = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random() % 9) - 4;
    return values;
  };
  const std::vector<float> w = draw(kRows * kCols), x = draw(kCount * kCols), dy = draw(kCount * kRows),
                           before = draw(kCount * kRows);
  std::vector<float> y = before, dx(kCount * kCols);
  for (int64_t t = 0; t < kCount; ++t) {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kCols; ++j) {
        y[t * kRows + i] += x[t * kCols + j] * w[i * kCols + j];
        dx[t * kCols + j] += dy[t * kRows + i] * w[i * kCols + j];
      }
    }
  }
  for (const DType type : {DType::kF32, DType::kBf16}) {
    ModelMatrix matrix(type);
    ASSERT_TRUE(matrix.Reserve(kRows, kCols));
    matrix.Append(w.data(), 100);
    matrix.Append(w.data() + 100 * kCols, kRows - 100);
    std::vector<float> got = before, back(kCount * kCols), row(kCols);
    matrix.Multiply(x.data(), kCount, 1.0f, got.data());
    EXPECT_EQ(got, y);
    matrix.MultiplyBack(dy.data(), kCount, back.data());
    EXPECT_EQ(back, dx);
    matrix.ReadRow(7, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), w.begin() + 7 * kCols));
  }
  std::vector<Bf16> narrow;
  for (const float value : w) narrow.push_back(ToBf16(value));
  std::vector<float> got = before, back(kCount * kCols);
  WideningGemm(/*transpose_b=*/true, kCount, kRows, kCols, x.data(), narrow.data(), 1.0f, got.data());
  EXPECT_EQ(got, y);
  WideningGemm(/*transpose_b=*/false, kCount, kCols, kRows, dy.data(), narrow.data(), 0.0f, back.data());
  EXPECT_EQ(back, dx);
}

}  // namespace
}  // namespace aludel
