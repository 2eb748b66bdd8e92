#include "runtime/calibrate/aludel/sensitivity.h"

#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/aludel/sensitivity_file.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "tests/runtime/model/golden/tiny/qwen3_qk_norm";

class MeasuredSensitivity : public ::testing::Test {
 protected:
  MeasuredSensitivity()
      : consumer_(kModel, {.compute = DType::kF32}, DType::kF32, 16),
        gradients_(CacheGradient::Load(kModel).value()),
        all_{0, gradients_->columns()} {}

  absl::StatusOr<Sensitivity> Measure(absl::Span<const CacheColumns> ranges) {
    return MeasureSensitivity(consumer_.model(), *gradients_, prompts_, ranges, options_,
                              [this](absl::string_view, int64_t, int64_t) { return going_; });
  }

  TestModel consumer_;
  std::unique_ptr<CacheGradient> gradients_;
  const CacheColumns all_;
  std::vector<std::vector<int32_t>> prompts_ = {{1, 5, 9, 33, 70, 12}, {1, 44, 3, 8}, {1, 60, 61, 62, 20}};
  SensitivityOptions options_ = {.max_answer_tokens = 4, .samples = 2, .seed = 3};
  bool going_ = true;
};

double Trace(const Moments& moments) {
  double sum = 0;
  for (int64_t i = 0; i < moments.rows; ++i) sum += moments.at(i, i);
  return sum;
}

TEST_F(MeasuredSensitivity, IsSymmetricAndSeesKeysAndValuesOfEveryLayer) {
  const auto found = Measure({all_});
  ASSERT_TRUE(found.ok()) << found.status();
  const Moments& w = found->ranges[0];
  ASSERT_EQ(w.rows, all_.count);
  EXPECT_EQ(found->prompts, 3);
  EXPECT_EQ(found->tokens, 2 * (5 + 3 + 4));
  for (int64_t i = 0; i < w.rows; ++i) {
    EXPECT_GT(w.at(i, i), 0) << "column " << i;
    for (int64_t j = 0; j < i; ++j) {
      ASSERT_NEAR(w.at(i, j), w.at(j, i), 1e-6 * std::sqrt(w.at(i, i) * w.at(j, j)));
    }
  }
}

TEST_F(MeasuredSensitivity, OfALayerIsABlockOfTheWhole) {
  const int kv_dim = gradients_->config().kv_dim();
  const auto found = Measure({all_, CacheColumns::OfLayers(1, 1, kv_dim)});
  ASSERT_TRUE(found.ok()) << found.status();
  const Moments block = Block(found->ranges[0], 2 * kv_dim, 2 * kv_dim, 2 * kv_dim, 2 * kv_dim);
  const double scale = Trace(block) / static_cast<double>(block.rows);
  for (int64_t i = 0; i < block.rows; ++i) {
    for (int64_t j = 0; j < block.cols; ++j) {
      ASSERT_NEAR(block.at(i, j), found->ranges[1].at(i, j), 1e-5 * scale);
    }
  }
}

TEST_F(MeasuredSensitivity, LetsNoPromptCountForMoreThanTheNorm) {
  options_.max_norm = 1e-3;
  const auto found = Measure({all_});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->limited, 6);
  // Every gradient has exactly that norm, and the trace of g g^T is its square.
  EXPECT_NEAR(Trace(found->ranges[0]) * static_cast<double>(found->tokens), 6 * 1e-6, 1e-10);
}

TEST_F(MeasuredSensitivity, IsTheSameForTheSameSeed) {
  const std::vector<double> first = Measure({all_}).value().ranges[0].values;
  EXPECT_EQ(first, Measure({all_}).value().ranges[0].values);
  options_.seed = 4;
  EXPECT_NE(first, Measure({all_}).value().ranges[0].values);
}

TEST_F(MeasuredSensitivity, RefusesWhatDoesNotFitAndStopsWhenAsked) {
  const auto message = [this](const CacheColumns& range) {
    return std::string(Measure({range}).status().message());
  };
  EXPECT_THAT(message({1, all_.count}), HasSubstr("the cache has"));
  const auto other = CacheGradient::Load("tests/runtime/model/golden/tiny/llama_tied").value();
  const auto unlike = MeasureSensitivity(consumer_.model(), *other, prompts_, {all_}, options_,
                                         [](absl::string_view, int64_t, int64_t) { return true; });
  EXPECT_THAT(std::string(unlike.status().message()), HasSubstr("another model"));
  going_ = false;
  EXPECT_EQ(Measure({all_}).status().code(), absl::StatusCode::kCancelled);
  prompts_[1] = {1};
  EXPECT_THAT(message(all_), HasSubstr("calibration prompt 1 has 1 tokens, want 2 to 64"));
}

TEST_F(MeasuredSensitivity, IsMeasuredOnceForAllRates) {
  const std::string directory = ::testing::TempDir() + "/sensitivity";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  const std::vector<CacheColumns> ranges = {CacheColumns::OfLayers(0, 1, gradients_->config().kv_dim()),
                                            all_};
  int measured = 0;
  const auto open = [&] {
    return OpenSensitivity(directory, consumer_.model(), prompts_, ranges, options_, [&] {
      ++measured;
      return Measure(ranges);
    });
  };
  const auto first = open(), second = open();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(second->prompts, first->prompts);
  EXPECT_EQ(second->tokens, first->tokens);
  EXPECT_EQ(second->limited, first->limited);
  ASSERT_EQ(second->by_id.size(), first->by_id.size());
  for (const auto& [id, sum] : first->by_id) {
    EXPECT_EQ(second->by_id.at(id).energy, sum.energy);
    EXPECT_EQ(second->by_id.at(id).count, sum.count);
  }
  ASSERT_EQ(second->ranges.size(), 2u);
  for (size_t r = 0; r < 2; ++r) EXPECT_EQ(second->ranges[r].values, first->ranges[r].values);

  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    std::filesystem::resize_file(file.path(), 40);  // torn
  }
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(measured, 2);
  options_.seed = 4;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(measured, 3);
  going_ = false;
  prompts_.pop_back();
  EXPECT_EQ(open().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 2);
}

}  // namespace
}  // namespace aludel
