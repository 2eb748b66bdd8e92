#include "runtime/codec/lossless/lossless.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// The demo base's cache of a prompt in several chunks, in both formats.
class LosslessHandoff : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kTokens = 301;

  LosslessHandoff()
      : model_("deploy/demo/base", {.compute = GetParam(), .max_rows = 128}, DType::kBf16, 320),
        producer_pool_(
            BlockPool::Create(model_.device(), model_.model().MakeKvLayout(20, 16, DType::kBf16)).value()) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(10 + 37 * i % 500);
  }

  FrameStore Encode(const std::string& format) {
    const auto encoders = OpenEncoders(format, "", model_.model()).value();
    FrameStore store(encoders->spec());
    EncodeTask task{encoders.get(), &store};
    const absl::Status status =
        EncodePrompt(model_.model(), *producer_pool_, prompt_, kTokens - 1, absl::MakeSpan(&task, 1));
    EXPECT_TRUE(status.ok()) << status;
    return store;
  }

  KvTarget Target() { return {&model_.model(), &model_.pool(), model_.table().ids(), prompt_, kTokens - 1}; }

  // Of the last token over the pages as they are.
  std::vector<float> Logits() {
    std::vector<float> logits;
    EXPECT_TRUE(RunTokens(model_.model(), model_.pool(), model_.table().ids(), prompt_, kTokens - 1, kTokens,
                          nullptr, &logits)
                    .ok());
    return logits;
  }

  // Pages full of other tokens.
  void Spoil() {
    const std::vector<int32_t> other(kTokens, 99);
    ASSERT_TRUE(
        RunTokens(model_.model(), model_.pool(), model_.table().ids(), other, 0, kTokens, nullptr, nullptr)
            .ok());
  }

  TestModel model_;
  std::unique_ptr<BlockPool> producer_pool_;
  std::vector<int32_t> prompt_;
};

TEST_P(LosslessHandoff, GivesThePagesOfRawInFewerBytes) {
  const FrameStore raw = Encode("raw");
  const FrameStore lossless = Encode("lossless");
  EXPECT_GT(static_cast<double>(raw.total_bytes()), 1.3 * static_cast<double>(lossless.total_bytes()));

  Spoil();
  ASSERT_TRUE(ApplyFrames(raw.frames(), *OpenDecoders("raw", "", model_.model()).value(), Target()).ok());
  const std::vector<float> want = Logits();
  Spoil();
  EXPECT_NE(Logits(), want);
  Spoil();
  const auto decoders = OpenDecoders("lossless", "", model_.model()).value();
  ASSERT_TRUE(ApplyFrames(lossless.frames(), *decoders, Target()).ok());
  EXPECT_EQ(Logits(), want);
}

TEST_P(LosslessHandoff, FramesOfAnotherLengthOrPlaceAreRefused) {
  const FrameStore store = Encode("lossless");
  const auto decoders = OpenDecoders("lossless", "", model_.model()).value();
  const auto decoder = decoders->NewDecoder().value();
  ASSERT_TRUE(decoder->Begin(Target()).ok());
  const std::vector<uint8_t>& payload = store.frames()[0].payload;
  EXPECT_TRUE(decoder->Apply({0, 1, 0, 0, 128}, payload, Target()).ok());
  EXPECT_THAT(decoder->Apply({0, 1, 0, 0, 127}, payload, Target()).ToString(),
              HasSubstr("lossless frame of layer 0"));
  std::vector<uint8_t> longer = payload;
  longer.push_back(0);
  EXPECT_THAT(decoder->Apply({0, 1, 0, 0, 128}, longer, Target()).ToString(), HasSubstr("1 bytes behind V"));
  EXPECT_EQ(decoder->Apply({0, 1, 0, 299, 2}, payload, Target()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decoder->Apply({0, 2, 0, 0, 128}, payload, Target()).code(), absl::StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(Compute, LosslessHandoff, ::testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace aludel
