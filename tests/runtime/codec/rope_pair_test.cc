// Pairs whose ropes differ: K travels before RoPE, and the consumer rotates it by its own.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

constexpr char kSource[] = "tests/runtime/model/golden/tiny/llama_yarn/";
constexpr int64_t kTokens = 37;

// The first layer of a tiny model as a model of its own, with another rope. What one layer caches before RoPE
// depends on no rope: whatever the producer's, the consumer must get exactly what it would have computed.
class OneLayer {
 public:
  explicit OneLayer(const std::string& rope) {
    const auto file = SafetensorsFile::Open(absl::StrCat(kSource, "model.safetensors")).value();
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, entry] : file->entries()) {
      if (absl::StrContains(name, "layers.1.")) continue;
      tensors.push_back({name, entry.dtype, entry.shape, entry.data});
    }
    EXPECT_TRUE(WriteSafetensors(directory_.File("model.safetensors"), tensors, {}).ok());
    const TemporaryDirectory& target = directory_;
    nlohmann::json config = nlohmann::json::parse(std::ifstream(absl::StrCat(kSource, "config.json")));
    config["num_hidden_layers"] = 1;
    config["rope_parameters"] = nlohmann::json::parse(rope);
    target.Write("config.json", config.dump());
  }
  const std::string& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

std::vector<int32_t> Prompt() {
  std::vector<int32_t> prompt;
  for (int i = 0; i < kTokens; ++i) prompt.push_back(5 + 7 * i % 70);
  return prompt;
}

// Logits of the last token over the model's local prefill.
std::vector<float> Own(TestModel& model) {
  const std::vector<int32_t> prompt = Prompt();
  std::vector<float> logits;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, kTokens - 1}, {kTokens - 1, kTokens}}) {
    EXPECT_TRUE(
        RunTokens(model.model(), model.pool(), model.table().ids(), prompt, begin, end, nullptr, &logits)
            .ok());
  }
  return logits;
}

// The same over a cache that `producer` computed.
std::vector<float> HandedOver(TestModel& producer, TestModel& consumer, const std::string& format) {
  const std::vector<int32_t> prompt = Prompt();
  const auto encoder = OpenEncoders(format, "", producer.model()).value();
  const auto decoder = OpenDecoders(format, "", consumer.model()).value();
  FrameStore store(encoder->spec());
  EncodeTask task{encoder.get(), &store};
  const auto pool =
      BlockPool::Create(producer.device(), producer.model().MakeKvLayout(4, 16, DType::kBf16)).value();
  EXPECT_TRUE(EncodePrompt(producer.model(), *pool, prompt, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
  const KvTarget target{&consumer.model(), &consumer.pool(), consumer.table().ids(), prompt, kTokens - 1};
  EXPECT_TRUE(ApplyFrames(store.frames(), *decoder, target).ok());
  std::vector<float> logits;
  EXPECT_TRUE(RunTokens(consumer.model(), consumer.pool(), consumer.table().ids(), prompt, kTokens - 1,
                        kTokens, nullptr, &logits)
                  .ok());
  return logits;
}

float MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

TEST(RopePair, TheConsumerRotatesByItsOwnRope) {
  const std::vector<std::string> ropes = {
      R"({"rope_type": "default", "rope_theta": 10000.0})", R"({"rope_type": "default", "rope_theta": 20.0})",
      R"({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})",
      R"({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64})",
      R"({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
          "attention_factor": 2.0})"};
  std::vector<std::unique_ptr<OneLayer>> directories;
  std::vector<std::unique_ptr<TestModel>> models;
  for (const std::string& rope : ropes) {
    directories.push_back(std::make_unique<OneLayer>(rope));
    models.push_back(std::make_unique<TestModel>(directories.back()->path(),
                                                 TransformerOptions{.compute = DType::kF32, .max_rows = 64},
                                                 DType::kBf16, 64));
  }
  for (size_t p = 0; p < models.size(); ++p) {
    for (size_t c = 0; c < models.size(); ++c) {
      if (p == c) continue;
      SCOPED_TRACE(absl::StrCat("from ", ropes[p], " to ", ropes[c]));
      const std::vector<float> own = Own(*models[c]);
      const float apart = MaxDifference(own, Own(*models[p]));
      EXPECT_GT(apart, 0.02f) << "the ropes make no difference: this shows nothing";
      EXPECT_EQ(HandedOver(*models[p], *models[c], "raw"), own);
      EXPECT_LT(MaxDifference(HandedOver(*models[p], *models[c], "int8"), own), 0.5f * apart);
    }
  }
}

}  // namespace
}  // namespace aludel
