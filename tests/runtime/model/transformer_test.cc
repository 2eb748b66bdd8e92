#include "runtime/model/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/model/safetensors.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/runtime/model/golden/";

// Everything here is compared with an independent PyTorch forward (deploy/demo/train/reference.py).

float MaxDifference(absl::Span<const float> a, absl::Span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN stays
  }
  return worst;
}

std::vector<float> Floats(const SafetensorsEntry& entry) {
  std::vector<float> values(entry.elements());
  std::memcpy(values.data(), entry.data.data(), values.size() * sizeof(float));
  return values;
}

std::vector<int32_t> Ints(const SafetensorsEntry& entry) {
  std::vector<int32_t> values(entry.elements());
  std::memcpy(values.data(), entry.data.data(), values.size() * sizeof(int32_t));
  return values;
}

class TinyModel : public ::testing::TestWithParam<const char*> {
 protected:
  TinyModel() : directory_(absl::StrCat(kGolden, "tiny/", GetParam())) {
    const auto golden = nlohmann::json::parse(std::ifstream(directory_ + "/golden.json"));
    ids_ = golden["ids"].get<std::vector<int32_t>>();
    logits_ = golden["logits"].get<std::vector<std::vector<float>>>();
  }

  TestModel Load(DType compute, DType kv) {
    return TestModel(directory_, {.compute = compute, .rope_length = static_cast<int64_t>(ids_.size())}, kv,
                     static_cast<int64_t>(ids_.size()));
  }

  std::string directory_;
  std::vector<int32_t> ids_;
  std::vector<std::vector<float>> logits_;  // at every position
};

TEST_P(TinyModel, GivesTheReferenceLogitsTokenByToken) {
  TestModel model = Load(DType::kF32, DType::kF32);
  for (size_t i = 0; i < ids_.size(); ++i) {
    EXPECT_LT(MaxDifference(model.Run({&ids_[i], 1}), logits_[i]), 2e-4f * (1.0f + std::fabs(logits_[i][0])))
        << "position " << i;
  }
}

TEST_P(TinyModel, GivesTheReferenceLogitsInOneGoAndInChunks) {
  TestModel model = Load(DType::kF32, DType::kF32);
  const size_t n = ids_.size();
  EXPECT_LT(MaxDifference(model.Run(ids_), logits_[n - 1]), 1e-3f);
  model.Rewind(0);
  EXPECT_LT(MaxDifference(model.Run({ids_.data(), 7}), logits_[6]), 1e-3f);
  EXPECT_LT(MaxDifference(model.Run({ids_.data() + 7, 10}), logits_[16]), 1e-3f);
  EXPECT_LT(MaxDifference(model.Run({ids_.data() + 17, n - 17}), logits_[n - 1]), 1e-3f);
}

TEST_P(TinyModel, StaysNearTheReferenceInBf16) {
  TestModel model = Load(DType::kBf16, DType::kBf16);
  const std::vector<float> logits = model.Run(ids_);
  float scale = 0.0f;
  for (float value : logits_.back()) scale = std::max(scale, std::fabs(value));
  // Inputs of every product are rounded to 8 bits of mantissa.
  EXPECT_LT(MaxDifference(logits, logits_.back()), 0.06f * scale);
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyModel,
                         ::testing::Values("llama_llama3", "llama_linear", "llama_dynamic", "llama_yarn",
                                           "llama_tied", "llama_head_dim", "llama_sharded", "mistral_sliding",
                                           "qwen2_bias", "qwen3_qk_norm"));
// make_quantised.py: the reference computes with the weights that the stored bits stand for.
INSTANTIATE_TEST_SUITE_P(Quantised, TinyModel,
                         ::testing::Values("fp8_tensor", "fp8_row", "fp8_block", "awq_gemm", "gptq_act_order",
                                           "gptq_v2_whole_columns", "fp8_compressed_channel",
                                           "fp8_compressed_head", "fp8_modelopt"));

// KL(p || q) in nats, of distributions given by their logits.
double Divergence(absl::Span<const float> p, absl::Span<const float> q) {
  const auto log_total = [](absl::Span<const float> logits) {
    double total = 0;
    for (const float logit : logits) total += std::exp(double{logit});
    return std::log(total);
  };
  const double p_total = log_total(p), q_total = log_total(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_total, log_q = q[i] - q_total;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return sum;
}

class DemoModel : public ::testing::TestWithParam<const char*> {
 protected:
  DemoModel()
      : directory_(absl::StrCat("deploy/demo/", GetParam())),
        golden_(SafetensorsFile::Open(absl::StrCat(kGolden, GetParam(), ".safetensors")).value()) {}

  const SafetensorsEntry& Entry(const std::string& name) { return *golden_->Find(name).value(); }

  std::string directory_;
  std::unique_ptr<SafetensorsFile> golden_;
};

TEST_P(DemoModel, GivesTheReferenceLogits) {
  TestModel model(directory_, {.compute = DType::kF32}, DType::kF32, 1024);
  for (int p = 0; p < 6; ++p) {
    const std::string prompt = absl::StrCat("prompt.", p, ".");
    const std::vector<int32_t> ids = Ints(Entry(prompt + "ids"));
    const std::vector<int32_t> positions = Ints(Entry(prompt + "positions"));
    const std::vector<float> logits = Floats(Entry(prompt + "logits"));
    const size_t vocab = logits.size() / positions.size();
    for (size_t i = 0; i < positions.size(); ++i) {
      model.Rewind(0);
      const std::vector<float> ours = model.Run({ids.data(), size_t(positions[i]) + 1});
      EXPECT_LT(MaxDifference(ours, {logits.data() + i * vocab, vocab}), 2e-3f)
          << "prompt " << p << " position " << positions[i];
    }
  }
}

// What rounding the weights costs: KL divergence of the next token's distribution, mean over the references.
TEST_P(DemoModel, LosesLittleWithWeightsInIntegers) {
  for (const auto& [format, most] : {std::pair{WeightFormat::kInt8, 2e-4}, {WeightFormat::kInt4, 2e-2}}) {
    TestModel model(directory_, {.weights = format}, DType::kBf16, 1024);
    double sum = 0;
    int count = 0;
    for (int p = 0; p < 6; ++p) {
      const std::string prompt = absl::StrCat("prompt.", p, ".");
      const std::vector<int32_t> ids = Ints(Entry(prompt + "ids"));
      const std::vector<int32_t> positions = Ints(Entry(prompt + "positions"));
      const std::vector<float> logits = Floats(Entry(prompt + "logits"));
      const size_t vocab = logits.size() / positions.size();
      for (size_t i = 0; i < positions.size(); ++i) {
        model.Rewind(0);
        const std::vector<float> ours = model.Run({ids.data(), size_t(positions[i]) + 1});
        sum += Divergence({logits.data() + i * vocab, vocab}, ours);
        ++count;
      }
    }
    EXPECT_LT(sum / count, most) << Name(format);
  }
}

// Collects what one layer computed.
class Collector : public LayerObserver {
 public:
  absl::Status OnLayer(const LayerSlice& slice) override {
    Append(slice.h, &h[slice.layer]);
    Append(slice.k, &k[slice.layer]);
    Append(slice.v, &v[slice.layer]);
    return absl::OkStatus();
  }
  std::map<int, std::vector<std::vector<float>>> h, k, v;  // by layer and position

 private:
  static void Append(const TensorView& view, std::vector<std::vector<float>>* rows) {
    for (int64_t t = 0; t < view.rows; ++t) {
      rows->emplace_back(view.f32() + t * view.stride, view.f32() + t * view.stride + view.cols);
    }
  }
};

TEST_P(DemoModel, ShowsTheReferenceStatesToAnObserver) {
  TestModel model(directory_, {.compute = DType::kF32}, DType::kF32, 1024);
  const std::vector<int32_t> ids = Ints(Entry("prompt.0.ids"));
  const std::vector<int32_t> positions = Ints(Entry("layer.positions"));
  Collector collector;
  model.Run(ids, &collector);
  for (int layer : {0, 5}) {
    const std::string prefix = absl::StrCat("layer.", layer, ".");
    const struct {
      const char* name;
      const std::vector<std::vector<float>>& rows;
    } kinds[] = {{"h", collector.h[layer]}, {"k", collector.k[layer]}, {"v", collector.v[layer]}};
    for (const auto& kind : kinds) {
      const std::vector<float> expected = Floats(Entry(prefix + kind.name));
      const size_t width = expected.size() / positions.size();
      for (size_t i = 0; i < positions.size(); ++i) {
        EXPECT_LT(MaxDifference(kind.rows.at(positions[i]), {expected.data() + i * width, width}), 1e-3f)
            << prefix << kind.name << " position " << positions[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, DemoModel, ::testing::Values("base", "chat", "json"));

struct GreedyCase {
  const char* model;
  DType kv;
  const char* mode;
};

class Greedy : public ::testing::TestWithParam<GreedyCase> {};

TEST_P(Greedy, ChoosesTheReferenceTokensOn200Prompts) {
  const GreedyCase& param = GetParam();
  TestModel model(absl::StrCat("deploy/demo/", param.model), {.compute = DType::kF32}, param.kv, 1024);
  std::ifstream file(absl::StrCat(kGolden, param.model, ".greedy.jsonl"));
  std::string line;
  int prompts = 0;
  while (std::getline(file, line)) {
    const auto golden = nlohmann::json::parse(line);
    const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
    const auto expected = golden[param.mode]["tokens"].get<std::vector<int32_t>>();
    const auto gaps = golden[param.mode]["gaps"].get<std::vector<float>>();
    model.Rewind(0);
    std::vector<float> logits = model.Run(prompt);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      // Two logits closer than our tolerance are a tie, and what follows a tie is another text.
      if (best != expected[i] && gaps[i] < 4e-3f) break;
      ASSERT_EQ(best, expected[i]) << "question " << golden["question"] << " token " << i << " gap "
                                   << gaps[i];
      if (i + 1 < expected.size()) logits = model.Run({&expected[i], 1});
    }
    ++prompts;
  }
  EXPECT_EQ(prompts, 200);
}

INSTANTIATE_TEST_SUITE_P(Demo, Greedy,
                         ::testing::Values(GreedyCase{"chat", DType::kF32, "exact"},
                                           GreedyCase{"chat", DType::kBf16, "bf16_kv"},
                                           GreedyCase{"base", DType::kBf16, "bf16_kv"}));

TEST(Transformer, RefusesIdsOutsideTheVocabularyAndPositionsOutsideTheContext) {
  TestModel model("deploy/demo/chat", {.compute = DType::kF32}, DType::kF32, 1024);
  std::vector<float> logits;
  const int32_t bad = 2048;
  BatchItem item{{&bad, 1}, 0, model.table().ids()};
  EXPECT_THAT(std::string(model.model().Forward(absl::MakeSpan(&item, 1), model.pool(), &logits).message()),
              HasSubstr("token id 2048, vocabulary has 2048"));
  const int32_t good = 5;
  item = {{&good, 1}, 1024, model.table().ids()};
  EXPECT_THAT(std::string(model.model().Forward(absl::MakeSpan(&item, 1), model.pool(), &logits).message()),
              HasSubstr("context of 1024"));
}

TEST(Transformer, ProjectsAndWritesTheKeysThatAForwardWrites) {
  TestModel ours("deploy/demo/chat", {.compute = DType::kF32}, DType::kBf16, 64);
  TestModel copy("deploy/demo/chat", {.compute = DType::kF32}, DType::kBf16, 64);
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(7 + 31 * i % 2000);
  // Every layer of the copy is made from the first model's normalised inputs alone.
  class Copier : public LayerObserver {
   public:
    explicit Copier(TestModel* copy) : copy_(copy) {}
    absl::Status OnLayer(const LayerSlice& slice) override {
      const int64_t kv_dim = copy_->model().config().kv_dim();
      std::vector<float> k(slice.tokens() * kv_dim), v(slice.tokens() * kv_dim);
      const TensorView k_view = TensorView::Of(k.data(), slice.tokens(), kv_dim);
      const TensorView v_view = TensorView::Of(v.data(), slice.tokens(), kv_dim);
      copy_->model().ProjectKv(slice.layer, slice.h, k_view, v_view);
      copy_->model().WriteKv(slice.layer, slice.token_begin, copy_->table().ids(), k_view, v_view,
                             copy_->pool());
      return absl::OkStatus();
    }

   private:
    TestModel* copy_;
  } copier(&copy);
  ours.Run({ids.data(), 39}, &copier);
  copy.Rewind(39);
  EXPECT_EQ(MaxDifference(ours.Run({&ids[39], 1}), copy.Run({&ids[39], 1})), 0.0f);
}

}  // namespace
}  // namespace aludel
