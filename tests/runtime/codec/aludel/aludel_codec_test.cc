#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/stream_marks.h"
#include "runtime/codec/aludel/affine.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 14;

struct Structure {
  const char* model;
  int recomputed_layers;
  int group_layers;
  LatentPacking packing;
  int64_t head, tail;
  int64_t directions = 0;  // of side information; 0: all of H
};

// Of biases that bf16 does not hold, beside products that cancel most of them.
TEST(AludelAffine, AddsItsBiasBeforeTheResultIsRounded) {
  constexpr int64_t kRows = 21, kBefore = 16, kBehind = 40, kIn = kBefore + kBehind, kOut = 24;
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    TestModel test("deploy/demo/chat", {.compute = compute, .max_rows = 32}, DType::kBf16, 16);
    Transformer& model = test.model();
    HostMatrix w = HostMatrix::Zeros(kOut, kIn);
    for (float& value : w.values) value = RoundToBf16(normal(random));
    std::vector<float> bias(kOut), x(kRows * kIn);
    for (float& value : x) value = RoundToBf16(normal(random));
    std::vector<double> want(kRows * kOut);
    for (int64_t o = 0; o < kOut; ++o) {
      const auto dot = [&](int64_t r) {
        double sum = 0;
        for (int64_t i = 0; i < kIn; ++i) sum += double{x[r * kIn + i]} * w.row(o)[i];
        return sum;
      };
      bias[o] = static_cast<float>(0.01 * normal(random) - dot(0));
      for (int64_t r = 0; r < kRows; ++r) want[r * kOut + o] = dot(r) + bias[o];
    }
    const Affine affine = PackAffine(model, w, bias, kBefore).value();
    const int64_t ones = BiasColumns(model), cols = ones + kIn;
    const Buffer rows = AllocateWithOnes(model, PaddedRows(kRows), cols, kBefore).value();
    std::vector<Bf16> narrow(x.size());
    std::transform(x.begin(), x.end(), narrow.begin(), ToBf16);
    const size_t element = SizeOf(compute);
    const char* const from = compute == DType::kF32 ? reinterpret_cast<const char*>(x.data())
                                                    : reinterpret_cast<const char*>(narrow.data());
    for (int64_t r = 0; r < kRows; ++r) {
      char* const to = rows.as<char>() + r * cols * element;
      test.device()->CopyToDevice(to, from + r * kIn * element, kBefore * element, model.stream());
      test.device()->CopyToDevice(to + (kBefore + ones) * element, from + (r * kIn + kBefore) * element,
                                  kBehind * element, model.stream());
    }
    const Buffer out = test.device()->Allocate(PaddedRows(kRows) * kOut * sizeof(float)).value();
    const TensorView there{rows.data(), compute, kRows, cols, cols};
    for (const DType type : {DType::kF32, compute}) {
      MultiplyPadded(model, there, *affine.w, affine.added(), /*accumulate=*/false, out.data(), type);
      std::vector<char> bytes(kRows * kOut * SizeOf(type));
      test.device()->CopyToHost(bytes.data(), out.data(), bytes.size(), model.stream());
      ASSERT_TRUE(test.device()->Synchronize(model.stream()).ok());
      for (int64_t i = 0; i < kRows * kOut; ++i) {
        const float found = type == DType::kF32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                                : ToFloat(reinterpret_cast<const Bf16*>(bytes.data())[i]);
        // Half a step of what it is rounded to, and the sums' own error.
        const double rounding = type == DType::kF32 ? 0 : 0x1p-8 * std::fabs(want[i]);
        ASSERT_LE(std::fabs(found - want[i]), rounding + 2e-5) << Name(type) << ", " << i;
      }
    }
  }
}

// Codes that keep everything, finely quantized: with them the codec must add nothing of its own.
class KeepingAludel : public ::testing::TestWithParam<Structure> {
 protected:
  KeepingAludel()
      : side_(std::string("tests/runtime/model/golden/tiny/") + GetParam().model,
              {.compute = DType::kF32, .max_rows = 8}, DType::kBf16, 48),
        other_(BlockPool::Create(side_.device(), side_.model().MakeKvLayout(3, 16, DType::kBf16)).value()) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(3 + 5 * i % 70);
    const ModelConfig& config = side_.model().config();
    shape_.recomputed_layers = GetParam().recomputed_layers;
    shape_.packing = GetParam().packing;
    shape_.head_tokens = GetParam().head;
    shape_.tail_tokens = GetParam().tail;
    if (GetParam().directions > 0) AddDirections(config.hidden);
    for (int l = shape_.recomputed_layers + 1; l < config.layers; l += GetParam().group_layers) {
      const int layers = std::min(GetParam().group_layers, config.layers - l);
      const int64_t outputs = layers * 2 * config.kv_dim();
      shape_.groups.push_back({l, layers, outputs + 1});
      AddGroup(outputs, config.hidden);
    }
  }

  // The last but one is twice f[0].
  void AddDirections(int64_t hidden) {
    const int64_t rows = GetParam().directions;
    decoder_.side = HostMatrix::Zeros(rows, hidden);
    for (int64_t i = 0; i < rows; ++i) decoder_.side.row(i)[hidden - 1 - i] = 3.0f;
    decoder_.side.row(rows - 2)[hidden - rows + 1] = 0.0f;
    decoder_.side.row(rows - 2)[0] = 2.0f;
  }

  // z = x - f[0], undone by the decoder; half of it through the MLP, whose silu(u) - silu(-u) = u. Behind it
  // a latent that is never read: an odd rank, which products are padded for.
  void AddGroup(int64_t outputs, int64_t hidden) {
    const bool has_side = shape_.has_side();
    const int64_t directions = GetParam().directions;
    const int64_t side = !has_side ? 0 : directions > 0 ? directions : hidden;
    const int64_t rank = outputs + 1;
    const bool scales = shape_.packing == LatentPacking::kRans;
    const LatentGrid grid{1.0f / 1024, std::vector<int>(rank, 16),
                          std::vector<float>(scales ? rank : 0, 0.999f)};
    AludelEncoderGroup encoder{HostMatrix::Zeros(rank, outputs),
                               HostMatrix::Zeros(has_side ? rank : 0, has_side ? hidden : 0),
                               std::vector<float>(rank, 0.25f), grid};
    AludelDecoderGroup decoder;
    decoder.grid = grid;
    decoder.linear = HostMatrix::Zeros(outputs, side + rank);
    decoder.bias.assign(outputs, -0.25f);
    decoder.hidden = HostMatrix::Zeros(2 * outputs, side + rank);
    decoder.hidden_bias.assign(2 * outputs, 0.0f);
    decoder.out = HostMatrix::Zeros(outputs, 2 * outputs);
    for (int64_t i = 0; i < outputs; ++i) {
      encoder.matrix.row(i)[i] = 1.0f;
      decoder.linear.row(i)[side + i] = 0.5f;
      decoder.hidden.row(2 * i)[side + i] = 1.0f;
      decoder.hidden.row(2 * i + 1)[side + i] = -1.0f;
      decoder.out.row(i)[2 * i] = 0.5f;
      decoder.out.row(i)[2 * i + 1] = -0.5f;
      if (!has_side) continue;
      encoder.side.row(i)[0] = -1.0f;
      if (directions > 0) {
        decoder.linear.row(i)[directions - 2] = 0.5f;
      } else {
        decoder.linear.row(i)[0] = 1.0f;
      }
    }
    encoder_.push_back(std::move(encoder));
    decoder_.groups.push_back(std::move(decoder));
  }

  std::vector<float> LastLogits() {
    std::vector<float> logits;
    EXPECT_TRUE(RunTokens(side_.model(), side_.pool(), side_.table().ids(), prompt_, kTokens - 1, kTokens,
                          nullptr, &logits)
                    .ok());
    return logits;
  }

  KvTarget Target(const TokenRange& range) {
    return {&side_.model(), &side_.pool(), side_.table().ids(), prompt_, range.end, range.begin};
  }

  TestModel side_;
  std::unique_ptr<BlockPool> other_;
  std::vector<int32_t> prompt_;
  AludelShape shape_;
  AludelEncoderWeights encoder_;
  AludelDecoderWeights decoder_;
};

// Requests come on other threads than the one whose stream it is.
TEST_P(KeepingAludel, MakesEncodersBesideTheModelsStream) {
  Device& device = *side_.device();
  const auto codec = MakeAludelEncoders("keep", "", shape_, encoder_, side_.model()).value();
  const Buffer memory = device.Allocate(sizeof(float)).value();
  const float number = 1;
  device.CopyToDevice(memory.data(), &number, sizeof(number), side_.model().stream());
  const auto encoder = codec->NewEncoder();
  ASSERT_TRUE(encoder.ok());
  // There, work waits until somebody synchronizes.
  EXPECT_TRUE(device.name() != "guarded" || !device.Finished(side_.model().stream()));
  EXPECT_TRUE(device.Synchronize(side_.model().stream()).ok());
}

// In all packings that decode to codes, as the host would on other threads; later frames first.
TEST_P(KeepingAludel, GivesTheSameLogitsOverPayloadsThatAreOpenedBefore) {
  Device& device = *side_.device();
  const auto encode = MakeAludelEncoders("keep", "", shape_, encoder_, side_.model()).value();
  const auto decode = MakeAludelDecoders("keep", "", shape_, decoder_, side_.model()).value();
  const bool decoded = shape_.packing != LatentPacking::kFixed;
  const bool beside_device = dynamic_cast<StreamMarks*>(&device) != nullptr;
  EXPECT_EQ(decode->opener() != nullptr, decoded && beside_device);
  if (!decoded) return;
  const auto& opener = dynamic_cast<const PayloadOpener&>(*decode);
  const TokenRange range = HandedOver(encode->spec(), kTokens);
  FrameStore store(encode->spec());
  EncodeTask task{encode.get(), &store, range.end};
  ASSERT_TRUE(EncodePrompt(side_.model(), *other_, prompt_, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
  std::vector<float> logits[2];
  for (const bool opened : {false, true}) {
    side_.table() = BlockTable();
    ASSERT_TRUE(side_.table().Grow(side_.pool(), kTokens).ok());
    const auto decoder = decode->NewDecoder().value();
    ASSERT_TRUE(BeginHandoff(*decoder, Target(range)).ok());
    for (auto frame = store.frames().rbegin(); frame != store.frames().rend(); ++frame) {
      const FrameCoverage coverage = DecodeFrameHeader(frame->header)->coverage;
      if (opened) {
        const auto codes = opener.Open(coverage, frame->payload);
        ASSERT_TRUE(codes.ok()) << codes.status();
        EXPECT_TRUE(decoder->ApplyOpened(coverage, **codes, Target(range)).ok());
      } else {
        EXPECT_TRUE(decoder->Apply(coverage, frame->payload, Target(range)).ok());
      }
    }
    ASSERT_TRUE(device.Synchronize(side_.model().stream()).ok());
    ASSERT_TRUE(RunTokens(side_.model(), side_.pool(), side_.table().ids(), prompt_, range.end, kTokens - 1,
                          nullptr, nullptr)
                    .ok());
    logits[opened] = LastLogits();
  }
  EXPECT_EQ(logits[0], logits[1]);

  FrameCoverage coverage = DecodeFrameHeader(store.frames()[0].header)->coverage;
  const absl::Span<const uint8_t> payload = store.frames()[0].payload;
  EXPECT_EQ(opener.Open(coverage, payload.subspan(1)).status().code(), absl::StatusCode::kDataLoss);
  coverage.layers += 1;
  EXPECT_EQ(opener.Open(coverage, payload).status().code(), absl::StatusCode::kDataLoss);
}

TEST_P(KeepingAludel, GivesTheLogitsOfTheOwnPrefillAndRefusesForeignFrames) {
  ASSERT_TRUE(
      RunTokens(side_.model(), side_.pool(), side_.table().ids(), prompt_, 0, kTokens - 1, nullptr, nullptr)
          .ok());
  const std::vector<float> own = LastLogits();
  const auto encode = MakeAludelEncoders("keep", "", shape_, encoder_, side_.model()).value();
  const auto decode = MakeAludelDecoders("keep", "", shape_, decoder_, side_.model()).value();
  // Both sides plan for the same frames.
  const CodecSpec& spec = decode->spec();
  EXPECT_EQ(spec.kind, encode->spec().kind);
  EXPECT_EQ(spec.shipped_layers, encode->spec().shipped_layers);
  EXPECT_EQ(spec.recomputed_layers, encode->spec().recomputed_layers);
  EXPECT_EQ(spec.recomputed_head_tokens, encode->spec().recomputed_head_tokens);
  EXPECT_EQ(spec.recomputed_tail_tokens, encode->spec().recomputed_tail_tokens);
  EXPECT_EQ(spec.max_frame_bytes(kTokens), encode->spec().max_frame_bytes(kTokens));
  const TokenRange range = HandedOver(encode->spec(), kTokens);
  FrameStore store(encode->spec());
  EncodeTask task{encode.get(), &store, range.end};
  ASSERT_TRUE(EncodePrompt(side_.model(), *other_, prompt_, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
  // Forget local prefill: every page the handoff does not fill would show.
  side_.table() = BlockTable();
  ASSERT_TRUE(side_.table().Grow(side_.pool(), kTokens).ok());
  const absl::Status status = ApplyFrames(store.frames(), *decode, Target(range));
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(RunTokens(side_.model(), side_.pool(), side_.table().ids(), prompt_, range.end, kTokens - 1,
                        nullptr, nullptr)
                  .ok());
  const std::vector<float> logits = LastLogits();
  ASSERT_EQ(logits.size(), own.size());
  for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(logits[i], own[i], 0.03) << i;

  const auto decoder = decode->NewDecoder().value();
  ASSERT_TRUE(BeginHandoff(*decoder, Target(range)).ok());
  const WireFrame& frame = store.frames().front();
  FrameCoverage coverage = DecodeFrameHeader(frame.header)->coverage;
  const auto apply = [&](const FrameCoverage& c, absl::Span<const uint8_t> payload) {
    return decoder->Apply(c, payload, Target(range));
  };
  EXPECT_TRUE(apply(coverage, frame.payload).ok());
  EXPECT_EQ(apply(coverage, absl::MakeConstSpan(frame.payload).subspan(1)).code(),
            absl::StatusCode::kDataLoss);
  FrameCoverage wrong = coverage;
  wrong.layers += 1;
  EXPECT_THAT(std::string(apply(wrong, frame.payload).message()), HasSubstr("no group of its format"));
  wrong = coverage;
  wrong.tokens = 4000;
  EXPECT_EQ(apply(wrong, frame.payload).code(), absl::StatusCode::kDataLoss);
  wrong = coverage;
  wrong.plane = 1;
  EXPECT_EQ(apply(wrong, frame.payload).code(), absl::StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(
    Structures, KeepingAludel,
    ::testing::Values(Structure{"qwen3_qk_norm", -1, 9, LatentPacking::kFixed, 0, 0},
                      Structure{"qwen2_bias", 0, 9, LatentPacking::kDeflate, 0, 0},
                      Structure{"qwen2_bias", -1, 9, LatentPacking::kRans, 1, 0},
                      Structure{"llama_head_dim", 0, 1, LatentPacking::kDeflate, 2, 3},
                      Structure{"llama_head_dim", 0, 9, LatentPacking::kDeflate, 2, 0, 16},
                      Structure{"mistral_sliding", -1, 1, LatentPacking::kDeflate, 0, 1}));

}  // namespace
}  // namespace aludel
