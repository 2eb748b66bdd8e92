// Servers whose models differ in rope: K travels before RoPE, and the decode server rotates it by its own base, scaling and window.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/fleet.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/first_layers.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

constexpr uint32_t kTokens = 12;

// The demo base's first layer as a model of its own, with other members in its configuration. What one layer caches before
// RoPE depends on no rope: over whatever producer's cache, the answers must be exactly those of local prefill.
class OneLayer {
 public:
  explicit OneLayer(const std::string& members) {
    WriteFirstLayers("deploy/demo/base", 1, directory_.path());
    nlohmann::json config = nlohmann::json::parse(directory_.Read("config.json"));
    config.erase("rope_theta");
    config.update(nlohmann::json::parse(members));
    directory_.Write("config.json", config.dump());
  }
  const std::string& path() const { return directory_.path(); }

  // Greedy tokens of local prefill, in one process.
  std::vector<int32_t> Answer(const std::vector<int32_t>& prompt) const {
    TestModel model(path(), {.max_rows = 1024}, DType::kBf16, static_cast<int64_t>(prompt.size()) + kTokens);
    model.Run(absl::MakeConstSpan(prompt).first(prompt.size() - 1));
    std::vector<int32_t> tokens;
    for (int32_t next = prompt.back(); tokens.size() < kTokens; tokens.push_back(next)) {
      const std::vector<float> logits = model.Run(absl::MakeConstSpan(&next, 1));
      next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    return tokens;
  }

 private:
  TemporaryDirectory directory_;
};

TEST(RopePairServers, AnswersAreThoseOfTheDecodeServersOwnRope) {
  const OneLayer models[] = {
      OneLayer(R"({"rope_theta": 500000.0})"), OneLayer(R"({"rope_theta": 1000.0})"),
      OneLayer(R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                   "original_max_position_embeddings": 256}})"),
      OneLayer(R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "rope_theta": 10000.0,
                   "sliding_window": 48})")};
  const auto prompts = DemoPrompts(3);
  const size_t count = std::size(models);
  for (size_t c = 0; c < count; ++c) {
    const OneLayer& producer = models[(c + 1) % count];
    const OneLayer& consumer = models[c];
    FleetOptions options;
    options.prefill_model = producer.path();
    options.decode_model = consumer.path();
    Fleet fleet(options);
    ASSERT_TRUE(fleet.Start()) << "consumer " << c;
    int apart = 0;
    for (const auto& prompt : prompts) {
      const std::vector<int32_t> own = consumer.Answer(prompt);
      apart += static_cast<int>(producer.Answer(prompt) != own);
      const Answer answer = fleet.Ask(Fleet::Request(prompt, kTokens));
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
      EXPECT_EQ(answer.tokens, own) << "consumer " << c;
    }
    EXPECT_GT(apart, 0) << "the ropes make no difference: this shows nothing of consumer " << c;
    EXPECT_TRUE(fleet.DecodeIsIdle());
  }
}

}  // namespace
}  // namespace aludel
