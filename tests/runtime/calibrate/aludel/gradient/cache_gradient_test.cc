#include "runtime/calibrate/aludel/gradient/cache_gradient.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/fit/capture.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/runtime/model/golden/";

std::vector<float> Noise(std::mt19937_64& random, size_t count, double scale) {
  std::normal_distribution<double> normal;
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(scale * normal(random));
  return values;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// The prompt of a golden file.
std::vector<int32_t> Prompt(const std::string& file, const std::string& name) {
  const auto golden = SafetensorsFile::Open(kGolden + file).value();
  const SafetensorsEntry& entry = *golden->Find(name).value();
  std::vector<int32_t> ids(entry.elements());
  std::memcpy(ids.data(), entry.data.data(), ids.size() * sizeof(int32_t));
  return ids;
}

double Norm(const std::vector<float>& a) { return std::sqrt(Dot(a, a)); }

double Rms(const std::vector<float>& a) { return Norm(a) / std::sqrt(static_cast<double>(a.size())); }

std::vector<float> Moved(const std::vector<float>& from, const std::vector<float>& direction, double step) {
  std::vector<float> to = from;
  for (size_t i = 0; i < to.size(); ++i) to[i] += static_cast<float>(step * direction[i]);
  return to;
}

// A model, its own exact cache of the first `tokens` ids, the tail after them, and what Transformer says
// after each token of the tail.
struct Scenario {
  std::vector<float> cache;
  int64_t tokens;
  std::vector<int32_t> tail;
  std::vector<std::vector<float>> logits;
  std::unique_ptr<CacheGradient> gradients;

  Scenario(const std::string& directory, const std::vector<int32_t>& ids, int64_t cached)
      : tokens(cached), tail(ids.begin() + cached, ids.end()) {
    const auto size = static_cast<int64_t>(ids.size());
    TestModel model(directory, {.compute = DType::kF32, .rope_length = size}, DType::kF32, size);
    std::vector<CapturedLayer> layers(model.model().config().layers);
    const auto capture = PromptCapture::Create(model.model(), CaptureHalf::kWhole, 1, &layers).value();
    model.Run({ids.data(), static_cast<size_t>(cached)}, capture.get());
    for (const int32_t id : tail) logits.push_back(model.Run({&id, 1}));
    const int64_t kv_dim = model.model().config().kv_dim();
    for (int64_t t = 0; t < tokens; ++t) {
      for (const CapturedLayer& layer : layers) {
        cache.insert(cache.end(), layer.k.begin() + t * kv_dim, layer.k.begin() + (t + 1) * kv_dim);
        cache.insert(cache.end(), layer.v.begin() + t * kv_dim, layer.v.begin() + (t + 1) * kv_dim);
      }
    }
    gradients = CacheGradient::Load(directory, size).value();
  }

  CachedTail On(const std::vector<float>& other) const { return {other, tokens, tail}; }

  std::vector<float> LogProbabilities(const std::vector<float>& on) const {
    std::vector<float> logits;
    EXPECT_TRUE(gradients->Logits(On(on), &logits).ok());
    return Normalized(std::move(logits));
  }

  // Of unrelated distributions, which move the model where its own cache is wrong in nothing.
  std::vector<float> RandomLogProbabilities(std::mt19937_64& random) const {
    return Normalized(Noise(random, tail.size() * gradients->config().vocab, 1.0));
  }

  std::vector<float> Normalized(std::vector<float> logits) const {
    const auto vocab = static_cast<size_t>(gradients->config().vocab);
    for (size_t at = 0; at < logits.size(); at += vocab) {
      const auto row = absl::MakeSpan(logits).subspan(at, vocab);
      const double log_sum = NegativeLogProbability(row, 0) + row[0];
      for (float& value : row) value = static_cast<float>(value - log_sum);
    }
    return logits;
  }

  double Kl(const std::vector<float>& on, const std::vector<float>& target) const {
    std::vector<float> unused;
    return gradients->Kl(On(on), target, &unused).value();
  }
};

void ExpectTransformerLogits(const Scenario& s, double tolerance) {
  std::vector<float> logits;
  ASSERT_TRUE(s.gradients->Logits(s.On(s.cache), &logits).ok());
  const auto vocab = static_cast<size_t>(s.gradients->config().vocab);
  ASSERT_EQ(logits.size(), s.tail.size() * vocab);
  for (size_t i = 0; i < logits.size(); ++i) {
    const float want = s.logits[i / vocab][i % vocab];
    ASSERT_NEAR(logits[i], want, tolerance * (1 + std::abs(want))) << "token " << i / vocab;
  }
}

// d f / d step along `direction` at 0, by the five-point rule: its error falls with the fourth power of the
// step, so that steps may be large enough for f32.
template <typename Function>
double Slope(Function f, double step) {
  return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step);
}

// The gradient of the KL to `target` must predict what any movement of the cache does: along itself, and
// along random movements of K or V of each layer alone. `step` is the largest component's, in units of the
// cache's root mean square: large for f32, small for the softmax.
void ExpectGradientOfFiniteDifferences(const Scenario& s, const std::vector<float>& cache,
                                       const std::vector<float>& target, double step, double tolerance) {
  std::vector<float> gradient;
  EXPECT_GT(s.gradients->Kl(s.On(cache), target, &gradient).value(), 0.1);
  const auto expect_slope = [&](const std::vector<float>& direction, double unit, const std::string& what) {
    const double largest = std::abs(*std::max_element(
        direction.begin(), direction.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    const double want = Slope([&](double h) { return s.Kl(Moved(cache, direction, h), target); },
                              step * Rms(s.cache) / largest);
    EXPECT_NEAR(Dot(gradient, direction), want, tolerance * unit) << what;
  };
  expect_slope(gradient, Dot(gradient, gradient), "along the gradient");
  std::mt19937_64 random(1);
  const int64_t kv_dim = s.gradients->config().kv_dim();
  const int64_t columns = s.gradients->columns();
  for (int64_t kind = 0; kind < columns / kv_dim; ++kind) {
    std::vector<float> direction = Noise(random, cache.size(), 1.0);
    std::vector<float> mine = gradient;
    for (size_t i = 0; i < direction.size(); ++i) {
      if (static_cast<int64_t>(i) % columns / kv_dim != kind) direction[i] = mine[i] = 0;
    }
    // The slope along standard normal numbers has the gradient's norm as its deviation.
    EXPECT_GT(Norm(mine), 0);
    expect_slope(direction, Norm(mine), absl::StrCat(kind % 2 == 0 ? "K" : "V", " of layer ", kind / 2));
  }
}

class TinyCacheGradient : public ::testing::TestWithParam<const char*> {
 protected:
  TinyCacheGradient()
      : directory_(absl::StrCat(kGolden, "tiny/", GetParam())),
        ids_(Prompt(absl::StrCat("tiny/", GetParam(), "/golden.safetensors"), "ids")) {}

  std::string directory_;
  std::vector<int32_t> ids_;
};

TEST_P(TinyCacheGradient, GivesTheTransformersLogits) {
  ExpectTransformerLogits(Scenario(directory_, ids_, 14), 2e-4);
  ExpectTransformerLogits(Scenario(directory_, ids_, 23), 2e-4);
}

TEST_P(TinyCacheGradient, AgreesWithFiniteDifferences) {
  const Scenario s(directory_, ids_, 14);
  std::mt19937_64 random(2);
  ExpectGradientOfFiniteDifferences(s, s.cache, s.RandomLogProbabilities(random), 0.02, 1e-3);
}

TEST_P(TinyCacheGradient, IsZeroOnTheExactCache) {
  const Scenario s(directory_, ids_, 14);
  std::vector<float> gradient;
  const auto kl = s.gradients->Kl(s.On(s.cache), s.LogProbabilities(s.cache), &gradient);
  ASSERT_TRUE(kl.ok()) << kl.status();
  EXPECT_NEAR(*kl, 0, 1e-6);
  EXPECT_LT(Norm(gradient), 1e-5);
}

// Two branches on one trunk, one of them of noise, and rows that neither names: the other has the logits and the gradient
// that it has alone, and moves nothing of the noise.
TEST_P(TinyCacheGradient, KeepsBranchesApart) {
  constexpr int64_t kCached = 14, kTrunk = 9, kOther = 3, kUnseen = 2;
  const Scenario s(directory_, ids_, kCached);
  const int64_t columns = s.gradients->columns();
  const auto vocab = static_cast<size_t>(s.gradients->config().vocab);
  std::mt19937_64 random(4);
  const std::vector<float> noise = Noise(random, (kOther + kUnseen) * columns, 1.0);
  std::vector<float> cache(s.cache.begin(), s.cache.begin() + kTrunk * columns);
  cache.insert(cache.end(), noise.begin(), noise.end());
  cache.insert(cache.end(), s.cache.begin() + kTrunk * columns, s.cache.end());
  std::vector<int32_t> tail = {7, 3};
  tail.insert(tail.end(), s.tail.begin(), s.tail.end());
  const auto own_tail = static_cast<int64_t>(s.tail.size());
  const std::vector<TailBranch> branches = {{kTrunk, kOther, 2},
                                            {kTrunk + kOther + kUnseen, kCached - kTrunk, own_tail}};
  const CachedTail input{cache, kCached + kOther + kUnseen, tail, branches, kTrunk};

  std::vector<float> logits, alone;
  ASSERT_TRUE(s.gradients->Logits(input, &logits).ok());
  ASSERT_TRUE(s.gradients->Logits(s.On(s.cache), &alone).ok());
  ASSERT_EQ(logits.size(), alone.size() + 2 * vocab);
  for (size_t i = 0; i < alone.size(); ++i) {
    ASSERT_NEAR(logits[2 * vocab + i], alone[i], 1e-4 * (1 + std::abs(alone[i]))) << i;
  }
  // The other branch's targets are what it says itself, so that it has no slope of its own.
  const std::vector<float> target = s.RandomLogProbabilities(random);
  std::vector<float> targets = s.Normalized(logits);
  std::copy(target.begin(), target.end(), targets.begin() + static_cast<int64_t>(2 * vocab));
  std::vector<float> gradient, want;
  const auto kl = s.gradients->Kl(input, targets, &gradient);
  const auto kl_alone = s.gradients->Kl(s.On(s.cache), target, &want);
  ASSERT_TRUE(kl.ok() && kl_alone.ok()) << kl.status();
  const double share = static_cast<double>(own_tail) / static_cast<double>(tail.size());
  EXPECT_NEAR(*kl, share * *kl_alone, 1e-4 * *kl_alone);
  const double largest = Rms(want) * 100;
  for (int64_t row = 0; row < kCached + kOther + kUnseen; ++row) {
    const bool noise_row = row >= kTrunk && row < kTrunk + kOther + kUnseen;
    const int64_t from = row < kTrunk ? row : row - kOther - kUnseen;
    for (int64_t j = 0; j < columns; ++j) {
      const double wanted = noise_row ? 0 : share * want[from * columns + j];
      ASSERT_NEAR(gradient[row * columns + j], wanted, 1e-5 * largest) << "row " << row;
    }
  }
}

// Two branches of different length, and a row that neither names: each token is what Logits says behind those before it.
TEST_P(TinyCacheGradient, AnswersAsLogitsWouldTokenByToken) {
  constexpr int64_t kCached = 14, kTrunk = 9, kOther = 2, kUnseen = 1, kMost = 10;
  const Scenario s(directory_, ids_, kCached);
  std::mt19937_64 random(5);
  const std::vector<float> noise = Noise(random, (kOther + kUnseen) * s.gradients->columns(), 0.1);
  std::vector<float> cache(s.cache.begin(), s.cache.begin() + kTrunk * s.gradients->columns());
  cache.insert(cache.end(), noise.begin(), noise.end());
  cache.insert(cache.end(), s.cache.begin() + kTrunk * s.gradients->columns(), s.cache.end());
  const std::vector<int32_t> tail = {7, s.tail.front()};
  const std::vector<TailBranch> branches = {{kTrunk, kOther, 1},
                                            {kTrunk + kOther + kUnseen, kCached - kTrunk, 1}};
  const int64_t tokens = kCached + kOther + kUnseen;
  std::vector<std::vector<std::vector<float>>> seen(2);
  size_t longest = 0;
  const auto answers = s.gradients->Answer(
      {cache, tokens, tail, branches, kTrunk}, kMost,
      [&](size_t b, absl::Span<const float> row) { seen[b].emplace_back(row.begin(), row.end()); });
  ASSERT_TRUE(answers.ok()) << answers.status();
  const std::vector<int>& ends = s.gradients->config().eos_ids;
  std::vector<int32_t> fed;
  std::vector<TailBranch> whole = branches;
  for (size_t b = 0; b < 2; ++b) {
    ASSERT_EQ((*answers)[b].size(), seen[b].size());
    const auto end = std::find_first_of((*answers)[b].begin(), (*answers)[b].end(), ends.begin(), ends.end());
    const bool whole_answer =
        end == (*answers)[b].end() ? (*answers)[b].size() == kMost : end + 1 == (*answers)[b].end();
    EXPECT_TRUE(whole_answer) << "it ends with the first end token, or goes on to the most";
    longest = std::max(longest, (*answers)[b].size());
    fed.push_back(tail[b]);
    fed.insert(fed.end(), (*answers)[b].begin(), (*answers)[b].end() - 1);
    whole[b].tail = static_cast<int64_t>(seen[b].size());
  }
  std::vector<float> logits;
  ASSERT_TRUE(s.gradients->Logits({cache, tokens, fed, whole, kTrunk}, &logits).ok());
  size_t at = 0;
  for (size_t b = 0; b < 2; ++b) {
    for (size_t i = 0; i < seen[b].size(); ++i) {
      for (const float value : seen[b][i]) ASSERT_NEAR(value, logits[at++], 1e-4 * (1 + std::abs(value)));
      const auto& row = seen[b][i];
      EXPECT_EQ((*answers)[b][i], std::max_element(row.begin(), row.end()) - row.begin());
    }
  }
  EXPECT_EQ(at, logits.size());
  EXPECT_GT(longest, 7u) << "longer than the sliding window of one of the models";
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyCacheGradient,
                         ::testing::Values("llama_llama3", "llama_linear", "llama_dynamic", "llama_yarn",
                                           "llama_tied", "llama_head_dim", "llama_sharded", "mistral_sliding",
                                           "llama_biases", "qwen2_bias", "qwen3_qk_norm"));

Scenario Demo() {
  const std::vector<int32_t> ids = Prompt("chat.safetensors", "prompt.0.ids");
  return {"deploy/demo/chat", ids, static_cast<int64_t>(ids.size()) - 10};
}

TEST(DemoCacheGradient, GivesTheTransformersLogits) { ExpectTransformerLogits(Demo(), 2e-3); }

TEST(DemoCacheGradient, AgreesWithFiniteDifferences) {
  const Scenario s = Demo();
  std::mt19937_64 random(2);
  ExpectGradientOfFiniteDifferences(s, s.cache, s.RandomLogProbabilities(random), 0.05, 5e-3);
}

Scenario Tiny(const std::string& name) {
  const std::string directory = absl::StrCat("tiny/", name);
  return {kGolden + directory, Prompt(directory + "/golden.safetensors", "ids"), 14};
}

TEST(CacheGradient, LeavesTokensBeforeTheSlidingWindowAlone) {
  const Scenario s = Tiny("mistral_sliding");  // 14 cached tokens, and the tail's first token sees 6 of them
  std::mt19937_64 random(3);
  std::vector<float> gradient;
  ASSERT_TRUE(s.gradients->SampledLogProbability(s.On(s.cache), random, &gradient).ok());
  const int64_t columns = s.gradients->columns();
  for (int64_t t = 0; t < s.tokens; ++t) {
    const std::vector<float> row(gradient.begin() + t * columns, gradient.begin() + (t + 1) * columns);
    EXPECT_EQ(Norm(row) > 0, t >= s.tokens - 6) << "token " << t;
  }
}

TEST(CacheGradient, KlSurvivesATargetOfProbabilityZero) {
  const Scenario s = Tiny("qwen2_bias");
  const size_t vocab = s.gradients->config().vocab;
  std::vector<float> target(s.tail.size() * vocab, -std::numeric_limits<float>::infinity());
  double want = 0;
  for (size_t i = 0; i < s.tail.size(); ++i) {
    target[i * vocab + 7] = 0.0f;  // certainly token 7: the KL is its negative log-probability
    want += NegativeLogProbability(s.logits[i], 7) / static_cast<double>(s.tail.size());
  }
  EXPECT_NEAR(s.Kl(s.cache, target), want, 1e-3);
}

TEST(CacheGradient, SampledGradientAgreesWithFiniteDifferencesOfTheSameLabels) {
  const Scenario s = Tiny("qwen3_qk_norm");
  std::mt19937_64 random(5);
  const std::vector<float> direction = Noise(random, s.cache.size(), Rms(s.cache));
  std::vector<float> gradient, unused;
  const auto at = [&](double step, std::vector<float>* out) {
    std::mt19937_64 labels(12);  // draws that no step below comes near the edge of
    return s.gradients->SampledLogProbability(s.On(Moved(s.cache, direction, step)), labels, out).value();
  };
  at(0, &gradient);
  const double want = Slope([&](double step) { return at(step, &unused); }, 2e-3);
  EXPECT_NEAR(Dot(gradient, direction), want, 1e-2 * Norm(gradient) * Rms(s.cache));
}

TEST(CacheGradient, SampledGradientsGiveTheCurvatureOfTheKl) {
  const Scenario s = Tiny("qwen2_bias");
  std::mt19937_64 random(7);
  const std::vector<float> direction = Noise(random, s.cache.size(), Rms(s.cache));
  const std::vector<float> target = s.LogProbabilities(s.cache);
  constexpr double kStep = 0.05;
  const double kl =
      s.Kl(Moved(s.cache, direction, kStep), target) + s.Kl(Moved(s.cache, direction, -kStep), target);
  const double curvature = kl / (kStep * kStep) * static_cast<double>(s.tail.size());
  double square = 0;
  constexpr int kSamples = 2000;
  std::vector<float> gradient;
  for (int i = 0; i < kSamples; ++i) {
    ASSERT_TRUE(s.gradients->SampledLogProbability(s.On(s.cache), random, &gradient).ok());
    square += std::pow(Dot(gradient, direction), 2) / kSamples;
  }
  // The mean of 2000 squares of a near-normal number has a relative deviation of about 3 %.
  EXPECT_NEAR(square, curvature, 0.12 * curvature);
}

TEST(CacheGradient, NeverPassesANumberThatIsNotFinite) {
  const Scenario s = Tiny("llama_linear");
  const std::vector<float> target = s.LogProbabilities(s.cache);
  std::vector<float> gradient, logits;
  std::mt19937_64 random(1);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max()}) {
    std::vector<float> cache = s.cache;
    for (size_t i = 0; i < 200; ++i) cache[i] = bad;
    EXPECT_FALSE(s.gradients->Kl(s.On(cache), target, &gradient).ok()) << bad;
    EXPECT_FALSE(s.gradients->SampledLogProbability(s.On(cache), random, &gradient).ok()) << bad;
    EXPECT_FALSE(s.gradients->Logits(s.On(cache), &logits).ok()) << bad;
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = target;
    broken.back() = bad;
    EXPECT_FALSE(s.gradients->Kl(s.On(s.cache), broken, &gradient).ok()) << bad;
  }
  EXPECT_TRUE(s.gradients->Kl(s.On(s.cache), target, &gradient).ok());
}

TEST(CacheGradient, AnswersEndWithTheContext) {
  const Scenario s(absl::StrCat(kGolden, "tiny/llama_tied"),
                   Prompt("tiny/llama_tied/golden.safetensors", "ids"), 14);
  const int64_t most = s.gradients->config().max_positions;
  const auto nothing = [](size_t, absl::Span<const float>) {};
  const CachedTail input{s.cache, 14, absl::MakeConstSpan(s.tail).first(1)};
  const auto answer = s.gradients->Answer(input, 2 * most, nothing);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const std::vector<int>& ends = s.gradients->config().eos_ids;
  const bool ended = std::count(ends.begin(), ends.end(), answer->front().back()) > 0;
  EXPECT_TRUE(ended || answer->front().size() == static_cast<size_t>(most - 14)) << answer->front().size();
  EXPECT_EQ(s.gradients->Answer(input, 0, nothing).status().code(), absl::StatusCode::kInvalidArgument);
  const CachedTail two{s.cache, 14, absl::MakeConstSpan(s.tail).first(2)};
  EXPECT_EQ(s.gradients->Answer(two, 4, nothing).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CacheGradient, RefusesWhatDoesNotFit) {
  const Scenario s = Tiny("llama_tied");
  const std::vector<float> target = s.LogProbabilities(s.cache);
  std::vector<float> gradient;
  const auto message = [&](const CachedTail& input, absl::Span<const float> targets) {
    return std::string(s.gradients->Kl(input, targets, &gradient).status().message());
  };
  EXPECT_THAT(message({absl::MakeConstSpan(s.cache).subspan(1), s.tokens, s.tail}, target),
              HasSubstr("a cache of 14 tokens has 1791 numbers, want 128 each"));
  EXPECT_THAT(message({s.cache, -1, s.tail}, target), HasSubstr("a cache of -1 tokens"));
  EXPECT_THAT(message({s.cache, s.tokens, {}}, {}), HasSubstr("the tail is empty"));
  EXPECT_THAT(message(s.On(s.cache), absl::MakeConstSpan(target).subspan(1)),
              HasSubstr("479 target log-probabilities, want 48 for each of 10"));
  std::vector<int32_t> tail = s.tail;
  tail[3] = 48;
  EXPECT_THAT(message({s.cache, s.tokens, tail}, target), HasSubstr("token id 48, vocabulary has 48"));
  tail.assign(51, 1);
  EXPECT_THAT(message({s.cache, s.tokens, tail}, std::vector<float>(51 * 48)), HasSubstr("context of 64"));
  std::vector<TailBranch> branches = {{10, 5, 10}};
  EXPECT_THAT(
      message({s.cache, s.tokens, s.tail, branches, 10}, target),
      HasSubstr("a branch of rows 10 to 15 and a tail of 10 on a trunk of 10 tokens, the cache has 14"));
  branches = {{9, 5, 10}};
  EXPECT_THAT(message({s.cache, s.tokens, s.tail, branches, 10}, target),
              HasSubstr("a branch of rows 9 to 14"));
  branches = {{10, 4, 9}};
  EXPECT_THAT(message({s.cache, s.tokens, s.tail, branches, 10}, target),
              HasSubstr("tails have 9 tokens behind a trunk of 10, the input has 10"));
  EXPECT_FALSE(CacheGradient::Load("tests/no/such/model").ok());
}

}  // namespace
}  // namespace aludel
