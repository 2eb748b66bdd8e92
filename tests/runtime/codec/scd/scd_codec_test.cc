#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/scd/control.h"
#include "runtime/codec/scd/encode.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/scd/reconstruct.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/kernels/device_array.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

HostMatrix Identity(int64_t n) {
  HostMatrix m = HostMatrix::Zeros(n, n);
  for (int64_t i = 0; i < n; ++i) m.row(i)[i] = 1.0f;
  return m;
}

// Codes that keep everything: with them the codec must add nothing of its own.
ScdEncoderLayer KeepingEncoder(ScdMode mode, const ModelConfig& config) {
  if (mode == ScdMode::kPatch) return {mode, {}, {}, Identity(config.hidden)};
  return {mode, Identity(config.kv_dim()), Identity(config.kv_dim()), {}};
}

ScdDecoderLayer KeepingDecoder(ScdMode mode, const ModelConfig& config) {
  if (mode == ScdMode::kReuse) return {mode, Identity(config.kv_dim()), Identity(config.kv_dim()), {}};
  constexpr int kWidth = 3;
  AlignerWeights aligner{Identity(config.hidden), std::vector<float>(config.hidden),
                         HostMatrix::Zeros(2 * kWidth, config.hidden), std::vector<float>(2 * kWidth),
                         HostMatrix::Zeros(config.hidden, kWidth)};
  return {mode, {}, {}, aligner};
}

// One small model on both sides; `model` has what a Patch layer's projection must honor.
class KeepingCodes : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kTokens = 12;

  KeepingCodes()
      : side_(GetParam(), {.compute = DType::kBf16, .max_rows = 8}, DType::kBf16, 32),
        other_(BlockPool::Create(side_.device(), side_.model().MakeKvLayout(2, 16, DType::kBf16)).value()) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(3 + 5 * i % 70);
  }

  std::vector<float> LastLogits() {
    std::vector<float> logits;
    EXPECT_TRUE(RunTokens(side_.model(), side_.pool(), side_.table().ids(), prompt_, kTokens - 1, kTokens,
                          nullptr, &logits)
                    .ok());
    return logits;
  }

  // Hands over all but the last token with every layer in `mode`, then computes that token.
  std::vector<float> LogitsThrough(ScdMode mode) {
    const ModelConfig& config = side_.model().config();
    const ScdEncoderWeights encoder(config.layers, KeepingEncoder(mode, config));
    const ScdDecoderWeights decoder(config.layers, KeepingDecoder(mode, config));
    const auto encode = MakeScdEncoders("keep", "", encoder, side_.model()).value();
    const auto decode = MakeScdDecoders("keep", "", decoder, side_.model()).value();
    FrameStore store(encode->spec());
    EncodeTask task{encode.get(), &store};
    EXPECT_TRUE(EncodePrompt(side_.model(), *other_, prompt_, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
    const KvTarget target{&side_.model(), &side_.pool(), side_.table().ids(), prompt_, kTokens - 1};
    const absl::Status status = ApplyFrames(store.frames(), *decode, target);
    EXPECT_TRUE(status.ok()) << status;
    return LastLogits();
  }

  TestModel side_;
  std::unique_ptr<BlockPool> other_;
  std::vector<int32_t> prompt_;
};

TEST_P(KeepingCodes, GiveTheTokensOfTheOwnPrefill) {
  ASSERT_TRUE(
      RunTokens(side_.model(), side_.pool(), side_.table().ids(), prompt_, 0, kTokens - 1, nullptr, nullptr)
          .ok());
  const std::vector<float> own = LastLogits();
  // K and V are rounded to bf16 before the identity, which a bf16 page does anyway: nothing may differ.
  EXPECT_EQ(own, LogitsThrough(ScdMode::kReuse));
  // The attention input is bf16 already; the consumer's projections of it are those of local prefill.
  EXPECT_EQ(own, LogitsThrough(ScdMode::kPatch));
}

INSTANTIATE_TEST_SUITE_P(Models, KeepingCodes,
                         ::testing::Values("tests/runtime/model/golden/tiny/qwen2_bias",
                                           "tests/runtime/model/golden/tiny/qwen3_qk_norm"),
                         [](const auto& info) { return std::string(std::strrchr(info.param, '/') + 1); });

class Codec : public ::testing::Test {
 protected:
  Codec() : side_("tests/runtime/model/golden/tiny/qwen2_bias", {.compute = DType::kF32}, DType::kBf16, 16) {}

  const ModelConfig& config() { return side_.model().config(); }

  // Encodes one layer of two tokens whose K counts up from 1 and whose V is its negative.
  std::vector<WireFrame> EncodeCountedSlice(const EncoderFactory& codec) {
    const int64_t kv = config().kv_dim();
    std::vector<float> k(2 * kv), v(2 * kv), h(2 * config().hidden);
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] = static_cast<float>(i + 1);
      v[i] = -k[i];
    }
    FrameStore store(codec.spec());
    const auto encoder = codec.NewEncoder().value();
    const DeviceArray<float> device_k(*side_.device(), k), device_v(*side_.device(), v);
    const DeviceArray<float> device_h(*side_.device(), h);
    const LayerSlice slice{1, 5, device_h.View(2, config().hidden), device_k.View(2, kv),
                           device_v.View(2, kv)};
    EXPECT_TRUE(encoder->Encode(slice, store).ok());
    return store.frames();
  }

  // Encoder of every layer: Z_K = (K_0, K_0 + K_1), Z_V = (V_1).
  std::unique_ptr<EncoderFactory> SmallEncoder() {
    ScdEncoderLayer layer;
    layer.k = HostMatrix::Zeros(2, config().kv_dim());
    layer.k.row(0)[0] = layer.k.row(1)[0] = layer.k.row(1)[1] = 1.0f;
    layer.v = HostMatrix::Zeros(1, config().kv_dim());
    layer.v.row(0)[1] = 1.0f;
    return MakeScdEncoders("small", std::string(64, 'a'), ScdEncoderWeights(config().layers, layer),
                           side_.model())
        .value();
  }

  TestModel side_;
};

TEST_F(Codec, PayloadBytesAreThoseOfTheFormatDocument) {
  const auto codec = SmallEncoder();
  const std::vector<WireFrame> frames = EncodeCountedSlice(*codec);
  ASSERT_EQ(frames.size(), 1u);
  const auto header = DecodeFrameHeader(frames[0].header);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->kind, FrameKind::kScd);
  EXPECT_EQ(header->coverage.first_layer, 1);
  EXPECT_EQ(header->coverage.token_begin, 5u);
  EXPECT_EQ(header->coverage.tokens, 2u);
  EXPECT_EQ(header->artifact[0], 0xaa);
  const auto kv = static_cast<float>(config().kv_dim());
  std::vector<uint8_t> want;
  for (const float value : {1.0f, 3.0f, kv + 1, 2 * kv + 3, -2.0f, -(kv + 2)}) {
    const uint16_t bits = ToBf16(value).bits;
    want.push_back(static_cast<uint8_t>(bits & 0xff));
    want.push_back(static_cast<uint8_t>(bits >> 8));
  }
  EXPECT_EQ(frames[0].payload, want);
  EXPECT_LE(frames[0].payload.size(), codec->spec().max_frame_bytes(2));
}

// Requests, and artifacts that are switched, come on other threads than the one whose stream it is.
TEST_F(Codec, IsOpenedAndMakesEncodersBesideTheModelsStream) {
  Device& device = *side_.device();
  const Buffer memory = device.Allocate(sizeof(float)).value();
  const float number = 1;
  device.CopyToDevice(memory.data(), &number, sizeof(number), side_.model().stream());
  const auto codec = SmallEncoder();
  const auto encoder = codec->NewEncoder();
  ASSERT_TRUE(encoder.ok());
  const auto uploaded =
      UploadFor(side_.model(), {1, 2});  // until the end: to free it is to wait for all work
  EXPECT_TRUE(uploaded.ok());
  // There, work waits until its stream is synchronized.
  EXPECT_TRUE(device.name() != "guarded" || !device.Finished(side_.model().stream()));
  EXPECT_TRUE(device.Synchronize(side_.model().stream()).ok());
}

TEST_F(Codec, PayloadOfTheWrongLengthNamesLayerAndBoth) {
  const ScdDecoderLayer layer{
      ScdMode::kReuse, HostMatrix::Zeros(config().kv_dim(), 2), HostMatrix::Zeros(config().kv_dim(), 1), {}};
  const auto codec =
      MakeScdDecoders("small", "", ScdDecoderWeights(config().layers, layer), side_.model()).value();
  const auto decoder = codec->NewDecoder().value();
  const std::vector<int32_t> prompt(8, 3);
  const KvTarget target{&side_.model(), &side_.pool(), side_.table().ids(), prompt, 7};
  const std::vector<uint8_t> payload(11);
  EXPECT_THAT(decoder->Apply({1, 1, 0, 0, 2}, payload, target).ToString(),
              HasSubstr("layer 1: payload is 11 bytes, want 12 (2 tokens of rank 3)"));
  // Both sides plan for the same frames.
  EXPECT_EQ(codec->spec().max_frame_bytes(2), SmallEncoder()->spec().max_frame_bytes(2));
  EXPECT_EQ(codec->spec().shipped_layers, SmallEncoder()->spec().shipped_layers);
}

TEST_F(Codec, ControlOfAllButTheLastLayerIsAlmostThePrefill) {
  // With every layer recomputed except the deepest, whose K and V come free, nothing is predicted.
  std::vector<int32_t> prompt;
  for (int i = 0; i < 10; ++i) prompt.push_back(3 + 7 * i % 70);
  const absl::Span<const int32_t> ids = prompt;
  std::vector<float> own;
  ASSERT_TRUE(RunTokens(side_.model(), side_.pool(), side_.table().ids(), ids, 0, 9, nullptr, nullptr).ok());
  ASSERT_TRUE(RunTokens(side_.model(), side_.pool(), side_.table().ids(), ids, 9, 10, nullptr, &own).ok());
  ControlWeights weights;
  weights.recomputed_layers = config().layers - 1;
  weights.layers.resize(config().layers);
  const auto codec = MakeControlDecoders("control", weights, side_.model()).value();
  const KvTarget target{&side_.model(), &side_.pool(), side_.table().ids(), ids, 9};
  ASSERT_TRUE(ApplyFrames({}, *codec, target).ok());
  std::vector<float> controlled;
  ASSERT_TRUE(
      RunTokens(side_.model(), side_.pool(), side_.table().ids(), ids, 9, 10, nullptr, &controlled).ok());
  EXPECT_EQ(own, controlled);
}

}  // namespace
}  // namespace aludel
