#include "runtime/codec/handoff.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/oracle.h"
#include "tests/testing/recomputed_tokens.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// One model on both sides, so that raw must be exact. max_rows is small: prompts take several chunks.
struct Types {
  DType compute;
  DType kv;  // of both sides' caches
};

class RawHandoff : public ::testing::TestWithParam<Types> {
 protected:
  static constexpr int64_t kTokens = 37;

  RawHandoff()
      : consumer_("deploy/demo/chat", {.compute = GetParam().compute, .max_rows = 16}, GetParam().kv, 64),
        encoders_(OpenEncoders("raw", "", consumer_.model()).value()),
        decoders_(OpenDecoders("raw", "", consumer_.model()).value()),
        store_(encoders_->spec()) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(10 + 7 * i % 500);
    auto pool = BlockPool::Create(consumer_.device(), consumer_.model().MakeKvLayout(4, 16, GetParam().kv));
    producer_pool_ = *std::move(pool);
    EncodeTask task{encoders_.get(), &store_};
    const absl::Status status =
        EncodePrompt(consumer_.model(), *producer_pool_, prompt_, kTokens - 1, absl::MakeSpan(&task, 1));
    EXPECT_TRUE(status.ok()) << status;
  }

  // Of a token: what travels is bf16, whatever caches are.
  int64_t WireBytes() {
    return static_cast<int64_t>(consumer_.model().MakeKvLayout(1, 16, DType::kBf16).bytes_per_token());
  }
  KvTarget Target() {
    return {&consumer_.model(), &consumer_.pool(), consumer_.table().ids(), prompt_, kTokens - 1};
  }

  TestModel consumer_;
  std::unique_ptr<EncoderFactory> encoders_;
  std::unique_ptr<DecoderFactory> decoders_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<BlockPool> producer_pool_;
  FrameStore store_;
};

TEST_P(RawHandoff, GivesTheLogitsOfTheConsumersOwnPrefill) {
  const absl::Span<const int32_t> prompt = prompt_;
  std::vector<float> own;
  ASSERT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), prompt, 0, kTokens - 1,
                        nullptr, nullptr)
                  .ok());
  ASSERT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), prompt, kTokens - 1,
                        kTokens, nullptr, &own)
                  .ok());
  // Pages full of other tokens, which the handoff must replace.
  const std::vector<int32_t> other(kTokens, 99);
  ASSERT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), other, 0, kTokens,
                        nullptr, nullptr)
                  .ok());
  ASSERT_TRUE(ApplyFrames(store_.frames(), *decoders_, Target()).ok());
  std::vector<float> handed_over;
  ASSERT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), prompt, kTokens - 1,
                        kTokens, nullptr, &handed_over)
                  .ok());
  EXPECT_EQ(own, handed_over);
}

TEST_P(RawHandoff, BytesAreHeadersAndTwoPlanesPerLayer) {
  const ModelConfig& config = consumer_.model().config();
  const size_t chunks = 3;  // 36 tokens in steps of 16
  EXPECT_EQ(store_.frames().size(), chunks * config.layers);
  EXPECT_EQ(store_.total_bytes(), store_.frames().size() * kFrameHeaderBytes + (kTokens - 1) * WireBytes());
}

TEST_P(RawHandoff, FramesMayComeInAnyOrder) {
  std::vector<WireFrame> frames = store_.frames();
  std::reverse(frames.begin(), frames.end());
  EXPECT_TRUE(ApplyFrames(frames, *decoders_, Target()).ok());
}

TEST_P(RawHandoff, MissingFrameIsNoticed) {
  std::vector<WireFrame> frames = store_.frames();
  frames.pop_back();
  EXPECT_THAT(ApplyFrames(frames, *decoders_, Target()).ToString(),
              HasSubstr("misses 4 (layer, token) cells"));
}

TEST_P(RawHandoff, RepeatedFrameIsRefused) {
  std::vector<WireFrame> frames = store_.frames();
  frames.push_back(frames.front());
  EXPECT_EQ(ApplyFrames(frames, *decoders_, Target()).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(RawHandoff, PayloadOfTheWrongLengthNamesBoth) {
  const auto decoder = decoders_->NewDecoder().value();
  ASSERT_TRUE(decoder->Begin(Target()).ok());
  const std::vector<uint8_t> payload(10);
  EXPECT_THAT(decoder->Apply({0, 1, 0, 0, 2}, payload, Target()).ToString(),
              HasSubstr("payload is 10 bytes, want 1024"));
}

TEST_P(RawHandoff, FrameBeyondTheTargetIsRefused) {
  const auto decoder = decoders_->NewDecoder().value();
  const std::vector<uint8_t> payload(512);
  for (const FrameCoverage& bad :
       std::vector<FrameCoverage>{{8, 1, 0, 0, 1}, {0, 1, 0, 36, 1}, {0, 2, 0, 0, 1}, {0, 1, 1, 0, 1}}) {
    EXPECT_EQ(decoder->Apply(bad, payload, Target()).code(), absl::StatusCode::kDataLoss);
  }
}

// The same model with five recomputed tokens at the head and three before the last: what travels lies between.
TEST_P(RawHandoff, RecomputedTokensAreComputedAndNeverShipped) {
  const RecomputedTokensEncoders encoders(OpenEncoders("raw", "", consumer_.model()).value(), 5, 3);
  const RecomputedTokensDecoders decoders(OpenDecoders("raw", "", consumer_.model()).value(), 5, 3);
  const TokenRange range = HandedOver(encoders.spec(), kTokens);
  ASSERT_EQ(range.begin, 5);
  ASSERT_EQ(range.end, kTokens - 4);
  FrameStore store(encoders.spec());
  EncodeTask task{&encoders, &store, range.end};
  const absl::Span<const int32_t> prompt = prompt_;
  ASSERT_TRUE(
      EncodePrompt(consumer_.model(), *producer_pool_, prompt, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
  EXPECT_EQ(store.total_bytes(), store.frames().size() * kFrameHeaderBytes + range.tokens() * WireBytes());

  std::vector<float> own, handed_over;
  const auto run = [&](int64_t begin, int64_t end, std::vector<float>* logits) {
    return RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), prompt, begin, end,
                     nullptr, logits);
  };
  ASSERT_TRUE(run(0, kTokens, &own).ok());
  const std::vector<int32_t> other(kTokens, 99);
  ASSERT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), other, 0, kTokens,
                        nullptr, nullptr)
                  .ok());
  KvTarget target = Target();
  target.begin = range.begin;
  target.tokens = range.end;
  ASSERT_TRUE(ApplyFrames(store.frames(), decoders, target).ok());
  ASSERT_TRUE(run(range.end, kTokens, &handed_over).ok());
  ASSERT_EQ(own.size(), handed_over.size());
  // A GPU's products run in another order where there are fewer rows, and what they give to the cache is rounded to bf16,
  // and then perhaps to FP8.
  const float rounding = GetParam().kv == DType::kFp8 ? 0.3f : 0.02f;
  const float tolerance = consumer_.device()->name() == "cpu" ? 0.0f : rounding;
  for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], handed_over[i], tolerance);

  // Frames that reach into the head are refused.
  EXPECT_THAT(ApplyFrames(store_.frames(), decoders, target).ToString(),
              HasSubstr("the handoff has [5, 33)"));
  const std::vector<uint8_t> payload(512);
  const auto decoder = decoders.NewDecoder().value();
  EXPECT_EQ(decoder->Apply({0, 1, 0, 4, 1}, payload, target).code(), absl::StatusCode::kDataLoss);
}

TEST(HandedOver, IsEmptyWhereRecomputedTokensLeaveNothing) {
  TestModel model("deploy/demo/chat", {}, DType::kBf16, 16);
  const CodecSpec codec = WithRecomputedTokens(OpenDecoders("raw", "", model.model()).value()->spec(), 4, 12);
  EXPECT_EQ(HandedOver(codec, 17).tokens(), 0);
  EXPECT_EQ(HandedOver(codec, 17).end, 0);
  EXPECT_EQ(HandedOver(codec, 18).tokens(), 1);
}

INSTANTIATE_TEST_SUITE_P(Types, RawHandoff,
                         ::testing::Values(Types{DType::kF32, DType::kBf16},
                                           Types{DType::kBf16, DType::kBf16}, Types{DType::kF32, DType::kFp8},
                                           Types{DType::kBf16, DType::kFp8}),
                         [](const auto& info) {
                           return absl::StrCat(Name(info.param.compute), "_over_", Name(info.param.kv));
                         });

// Frames from a prefill server whose cache is bf16 fill an FP8 cache as local prefill does, but for what its layers
// attended to before.
TEST(HandoffIntoFp8, IsNearLocalPrefill) {
  constexpr int64_t kTokens = 37;
  TestModel consumer("deploy/demo/chat", {.max_rows = 16}, DType::kFp8, 64);
  Transformer& model = consumer.model();
  std::vector<int32_t> prompt;
  for (int i = 0; i < kTokens; ++i) prompt.push_back(10 + 7 * i % 500);
  const auto run = [&](int64_t begin, int64_t end, std::vector<float>* logits) {
    return RunTokens(model, consumer.pool(), consumer.table().ids(), prompt, begin, end, nullptr, logits);
  };
  std::vector<float> own;
  ASSERT_TRUE(run(0, kTokens - 1, nullptr).ok());
  ASSERT_TRUE(run(kTokens - 1, kTokens, &own).ok());
  const auto pool = BlockPool::Create(consumer.device(), model.MakeKvLayout(4, 16, DType::kBf16)).value();
  for (const char* const format : {"raw", "int8", "lossless"}) {
    SCOPED_TRACE(format);
    const auto encoders = OpenEncoders(format, "", model).value();
    const auto decoders = OpenDecoders(format, "", model).value();
    FrameStore store(encoders->spec());
    EncodeTask task{encoders.get(), &store};
    ASSERT_TRUE(EncodePrompt(model, *pool, prompt, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
    const std::vector<int32_t> other(kTokens, 99);
    ASSERT_TRUE(
        RunTokens(model, consumer.pool(), consumer.table().ids(), other, 0, kTokens, nullptr, nullptr).ok());
    std::vector<float> handed_over;
    ASSERT_TRUE(run(kTokens - 1, kTokens, &handed_over).ok());
    EXPECT_GT(Diverge(own, handed_over).kl, 0.5);
    ASSERT_TRUE(ApplyFrames(store.frames(), *decoders,
                            {&model, &consumer.pool(), consumer.table().ids(), prompt, kTokens - 1})
                    .ok());
    ASSERT_TRUE(run(kTokens - 1, kTokens, &handed_over).ok());
    EXPECT_LT(Diverge(own, handed_over).kl, 0.05);
  }
}

TEST(OpenEncoders, FormatWithoutArtifactSaysSo) {
  TestModel model("deploy/demo/chat", {}, DType::kBf16, 16);
  EXPECT_THAT(OpenEncoders("scd", "", model.model()).status().ToString(),
              HasSubstr("format \"scd\" needs an artifact directory"));
  EXPECT_THAT(*ListFormats(""), ::testing::ElementsAre("raw"));
}

}  // namespace
}  // namespace aludel
