#include "runtime/codec/quantized.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/token_quantizer.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/kernels/device_array.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// KL(p || q) of two next-token distributions given by their logits, in double.
double Divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const auto log_sum = [](const std::vector<float>& logits) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    return std::log(sum);
  };
  const double p_sum = log_sum(p), q_sum = log_sum(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
  return kl;
}

// One model on both sides, so that quantization is the only loss. max_rows is small: several chunks.
class Quantized : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kTokens = 37;
  static constexpr int kLayer = 7;

  Quantized()
      : model_("deploy/demo/chat", {.compute = DType::kF32, .max_rows = 16}, DType::kBf16, 64),
        name_("int" + std::to_string(GetParam())),
        encoders_(OpenEncoders(name_, "", model_.model()).value()),
        decoders_(OpenDecoders(name_, "", model_.model()).value()),
        width_(model_.model().config().kv_dim()),
        store_(encoders_->spec()) {
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(10 + 7 * i % 500);
  }

  KvTarget Target() { return {&model_.model(), &model_.pool(), model_.table().ids(), prompt_, kTokens - 1}; }

  std::vector<float> LastLogits() {
    std::vector<float> logits;
    EXPECT_TRUE(RunTokens(model_.model(), model_.pool(), model_.table().ids(), prompt_, kTokens - 1, kTokens,
                          nullptr, &logits)
                    .ok());
    return logits;
  }

  // The frame of two tokens of the last layer, which waits for no other: K rising and V falling.
  absl::Status EncodeSlice() {
    k_.resize(2 * width_);
    v_.resize(2 * width_);
    for (int64_t i = 0; i < 2 * width_; ++i) {
      k_[i] += 0.01f * static_cast<float>(i);
      v_[i] -= std::sin(static_cast<float>(i));
    }
    LayerSlice slice;
    slice.layer = kLayer;
    slice.token_begin = 4;
    const DeviceArray<float> k(*model_.device(), k_), v(*model_.device(), v_);
    slice.k = k.View(2, width_);
    slice.v = v.View(2, width_);
    return encoders_->NewEncoder().value()->Encode(slice, store_);
  }

  absl::Status Apply(absl::Span<const uint8_t> payload) {
    return decoders_->NewDecoder().value()->Apply({kLayer, 1, 0, 4, 2}, payload, Target());
  }

  TestModel model_;
  std::string name_;
  std::unique_ptr<EncoderFactory> encoders_;
  std::unique_ptr<DecoderFactory> decoders_;
  int64_t width_;
  FrameStore store_;
  std::vector<int32_t> prompt_;
  std::vector<float> k_, v_;
};

TEST_P(Quantized, PayloadIsScalesAndCodesOfKThenOfV) {
  ASSERT_TRUE(EncodeSlice().ok());
  const TokenQuantizer quantizer(GetParam(), width_);
  std::vector<uint8_t> want;
  for (std::vector<float>* plane : {&k_, &v_}) {
    std::vector<uint8_t> scales, codes(2 * quantizer.code_bytes());
    for (int t = 0; t < 2; ++t) {
      const Bf16 scale =
          quantizer.Encode(plane->data() + t * width_, codes.data() + t * quantizer.code_bytes());
      scales.push_back(static_cast<uint8_t>(scale.bits & 0xff));
      scales.push_back(static_cast<uint8_t>(scale.bits >> 8));
    }
    want.insert(want.end(), scales.begin(), scales.end());
    want.insert(want.end(), codes.begin(), codes.end());
  }
  EXPECT_EQ(store_.frames().at(0).payload, want);
  EXPECT_EQ(want.size(), 2u * 2u * (2u + width_ * GetParam() / 8));
  EXPECT_EQ(encoders_->spec().max_frame_bytes(2), want.size());
  EXPECT_EQ(decoders_->spec().max_frame_bytes(2), want.size());
}

TEST_P(Quantized, HandoffStaysNearTheModelsOwnCache) {
  auto pool = BlockPool::Create(model_.device(), model_.model().MakeKvLayout(4, 16, DType::kBf16)).value();
  EncodeTask task{encoders_.get(), &store_};
  ASSERT_TRUE(EncodePrompt(model_.model(), *pool, prompt_, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
  ASSERT_TRUE(RunTokens(model_.model(), model_.pool(), model_.table().ids(), prompt_, 0, kTokens - 1, nullptr,
                        nullptr)
                  .ok());
  const std::vector<float> own = LastLogits();
  // Pages full of other tokens, which the handoff must replace.
  const std::vector<int32_t> other(kTokens, 99);
  ASSERT_TRUE(
      RunTokens(model_.model(), model_.pool(), model_.table().ids(), other, 0, kTokens, nullptr, nullptr)
          .ok());
  EXPECT_GT(Divergence(own, LastLogits()), 0.5);
  ASSERT_TRUE(ApplyFrames(store_.frames(), *decoders_, Target()).ok());
  EXPECT_LT(Divergence(own, LastLogits()), GetParam() == 8 ? 1e-3 : 0.2);
}

TEST_P(Quantized, TruncatedAndOverlongPayloadsAreRefused) {
  ASSERT_TRUE(EncodeSlice().ok());
  std::vector<uint8_t> payload = store_.frames().at(0).payload;
  EXPECT_TRUE(Apply(payload).ok());
  for (const size_t bytes : {size_t{0}, size_t{1}, payload.size() / 2, payload.size() - 1}) {
    const absl::Status status = Apply(absl::MakeConstSpan(payload).first(bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name_ + " frame of layer 7: payload is"));
  }
  payload.push_back(0);
  EXPECT_EQ(Apply(payload).code(), absl::StatusCode::kDataLoss);
}

TEST_P(Quantized, BadScaleIsRefusedBeforeAnythingIsWritten) {
  ASSERT_TRUE(EncodeSlice().ok());
  ASSERT_TRUE(RunTokens(model_.model(), model_.pool(), model_.table().ids(), prompt_, 0, kTokens - 1, nullptr,
                        nullptr)
                  .ok());
  const std::vector<float> before = LastLogits();
  const std::vector<uint8_t> payload = store_.frames().at(0).payload;
  const size_t last_v_scale = payload.size() / 2 + 2;
  for (const uint16_t bits : {0x7f80, 0x7fc0, 0xbf80}) {  // infinity, not a number, -1
    std::vector<uint8_t> bad = payload;
    bad[last_v_scale] = static_cast<uint8_t>(bits);
    bad[last_v_scale + 1] = static_cast<uint8_t>(bits >> 8);
    const absl::Status status = Apply(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("token 5: the scale of V is"));
  }
  EXPECT_EQ(LastLogits(), before);
}

TEST_P(Quantized, ProducerWhoseValuesOverflowGetsAnError) {
  v_.assign(2 * width_, 0);
  v_[width_ + 3] = std::numeric_limits<float>::infinity();
  const absl::Status status = EncodeSlice();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 7, token 5: V holds values"));
  EXPECT_TRUE(store_.frames().empty());
}

INSTANTIATE_TEST_SUITE_P(Bits, Quantized, ::testing::Values(8, 4));

}  // namespace
}  // namespace aludel
