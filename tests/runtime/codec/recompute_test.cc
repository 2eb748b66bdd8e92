#include "runtime/codec/recompute.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// A producer and a consumer with a handoff in three chunks, layers 2 to 4 recomputed.
class Recompute : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 37;

  Recompute() : consumer_("deploy/demo/chat", {.compute = DType::kF32, .max_rows = 16}, DType::kBf16, 64) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(10 + 7 * i % 500);
    Open("recompute-2-4");
  }

  void Open(const std::string& name) { codec_ = OpenDecoders(name, "", consumer_.model()).value(); }

  std::vector<WireFrame> Encode(const std::string& directory) {
    TestModel producer(directory, {.compute = DType::kF32, .max_rows = 16}, DType::kBf16, 64);
    const auto encoder = OpenEncoders(codec_->spec().name, "", producer.model()).value();
    FrameStore store(encoder->spec());
    EncodeTask task{encoder.get(), &store};
    const auto pool =
        BlockPool::Create(producer.device(), producer.model().MakeKvLayout(4, 16, DType::kBf16)).value();
    EXPECT_TRUE(EncodePrompt(producer.model(), *pool, prompt_, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
    return store.frames();
  }

  KvTarget Target() {
    return {&consumer_.model(), &consumer_.pool(), consumer_.table().ids(), prompt_, kTokens - 1};
  }

  std::vector<float> LastLogits() {
    std::vector<float> logits;
    EXPECT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), prompt_, kTokens - 1,
                          kTokens, nullptr, &logits)
                    .ok());
    return logits;
  }

  // Logits after the consumer's local prefill, whose pages are then filled with other tokens.
  std::vector<float> OwnLogits() {
    const auto run = [this](const std::vector<int32_t>& ids) {
      EXPECT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), ids, 0, kTokens - 1,
                            nullptr, nullptr)
                      .ok());
    };
    run(prompt_);
    std::vector<float> logits = LastLogits();
    run(std::vector<int32_t>(kTokens, 99));
    return logits;
  }

  static float MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
    float most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
    return most;
  }

  TestModel consumer_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<DecoderFactory> codec_;
};

TEST_F(Recompute, OneModelOnBothSidesLosesOnlyTheRoundingOfTheResidualStream) {
  const std::vector<float> own = OwnLogits();
  EXPECT_GT(MaxDifference(own, LastLogits()), 1.0f);
  const absl::Status status = ApplyFrames(Encode("deploy/demo/chat"), *codec_, Target());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(MaxDifference(own, LastLogits()), 0.2f);
}

// The embedding of a bf16 model is exact in bf16: recomputing everything is the consumer's local prefill, and
// so tells whether its weights, and not the producer's, are used.
TEST_F(Recompute, AllLayersFromTheSameEmbeddingGiveTheConsumersOwnCache) {
  Open("recompute-0-7");
  const std::vector<float> own = OwnLogits();
  ASSERT_TRUE(ApplyFrames(Encode("deploy/demo/chat"), *codec_, Target()).ok());
  EXPECT_EQ(own, LastLogits());
}

TEST_F(Recompute, FramesMayComeInAnyOrder) {
  std::vector<WireFrame> frames = Encode("deploy/demo/base");
  ASSERT_TRUE(ApplyFrames(frames, *codec_, Target()).ok());
  const std::vector<float> in_order = LastLogits();
  OwnLogits();
  std::reverse(frames.begin(), frames.end());
  ASSERT_TRUE(ApplyFrames(frames, *codec_, Target()).ok());
  EXPECT_EQ(LastLogits(), in_order);
}

TEST_F(Recompute, BytesAreOneResidualStreamAndTheOtherLayersRaw) {
  const ModelConfig& config = consumer_.model().config();
  size_t bytes = 0;
  for (const WireFrame& frame : Encode("deploy/demo/base")) bytes += frame.payload.size();
  EXPECT_EQ(bytes, (kTokens - 1) * (config.hidden + (config.layers - 3) * 2 * config.kv_dim()) * 2u);
  EXPECT_EQ(codec_->spec().recomputed_layers, 3);
}

TEST_F(Recompute, BadGroupFramesAreRefused) {
  const size_t bytes = 2 * consumer_.model().config().hidden * sizeof(Bf16);
  const std::vector<uint8_t> payload(bytes, 1);
  const auto decoder = codec_->NewDecoder().value();
  const auto complaint = [&](const FrameCoverage& coverage, absl::Span<const uint8_t> found) {
    return std::string(decoder->Apply(coverage, found, Target()).message());
  };
  EXPECT_THAT(complaint({2, 3, 0, 0, 2}, absl::MakeConstSpan(payload).first(bytes - 1)),
              HasSubstr("payload is 1023 bytes, want 1024"));
  EXPECT_THAT(complaint({2, 1, 0, 0, 2}, payload), HasSubstr("holds layers [2, 3), want [2, 5)"));
  EXPECT_THAT(complaint({1, 4, 0, 0, 2}, payload), HasSubstr("holds layers [1, 5), want [2, 5)"));
  EXPECT_THAT(complaint({2, 3, 0, 36, 2}, payload), HasSubstr("the handoff has [0, 36)"));
  std::vector<uint8_t> infinite = payload;
  infinite[10] = 0x80;
  infinite[11] = 0x7f;
  EXPECT_THAT(complaint({2, 3, 0, 0, 2}, infinite), HasSubstr("value 5 of the residual stream is inf"));
  EXPECT_EQ(complaint({2, 3, 0, 4, 2}, payload), "");
  EXPECT_THAT(complaint({2, 3, 0, 3, 2}, payload), HasSubstr("overlap"));
  EXPECT_THAT(complaint({2, 3, 0, 5, 2}, payload), HasSubstr("overlap"));
}

TEST_F(Recompute, NamesWithoutAGroupAreRefused) {
  for (const char* name : {"recompute-", "recompute-2", "recompute-4-2", "recompute-a-b", "recompute--1-2"}) {
    const auto codec = OpenDecoders(name, "", consumer_.model());
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(OpenDecoders("recompute-2-8", "", consumer_.model()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace aludel
