#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/sample.cuh"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/sample_problem.h"

namespace aludel::cuda {
namespace {

// The kernel's own source, run on the host by simt.h, chooses the CPU's token in every case.

class SampleKernelTest : public ::testing::Test {
 protected:
  SampleKernelTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  // A block of `threads` for each row.
  void Check(const std::vector<std::vector<float>>& rows, const std::vector<RowSampling>& draws,
             unsigned threads) {
    const auto vocab = static_cast<int64_t>(rows[0].size());
    const int64_t stride = vocab + 3;
    std::vector<float> logits(rows.size() * stride - 3, std::numeric_limits<float>::quiet_NaN());
    std::vector<DrawTerms> terms;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy(rows[r].begin(), rows[r].end(), logits.begin() + static_cast<int64_t>(r) * stride);
      terms.push_back(TermsOf(draws[r]));
    }
    std::vector<int32_t> tokens(rows.size(), -7);
    const SampleArgs args{logits.data(), stride, static_cast<int>(vocab), terms.data(), tokens.data()};
    simt::Launch({static_cast<unsigned>(rows.size())}, {threads}, sizeof(SampleShared), random_(),
                 [&](char* shared) { SampleRowOf(args, reinterpret_cast<SampleShared*>(shared)); });
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_EQ(tokens[r], SampleRow(rows[r].data(), vocab, draws[r]))
          << "vocabulary of " << vocab << ", " << threads << " threads: " << draws[r];
    }
  }

  void CheckRandom(int64_t vocab, size_t count, unsigned threads) {
    std::vector<std::vector<float>> rows(count);
    std::vector<RowSampling> draws(count);
    for (size_t i = 0; i < count; ++i) {
      rows[i] = RandomLogits(vocab, random_);
      draws[i] = RandomSampling(vocab, random_);
    }
    Check(rows, draws, threads);
  }

  std::mt19937_64 random_;
};

TEST_F(SampleKernelTest, ChoosesTheCpusTokenForEveryVocabulary) {
  for (const int64_t vocab : {1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 300, 1000, 2047, 4099}) {
    ASSERT_NO_FATAL_FAILURE(CheckRandom(vocab, 60, 64));
  }
}

TEST_F(SampleKernelTest, ChoosesTheCpusTokenWithBlocksOfAnySize) {
  for (const unsigned threads : {96u, 128u, 512u, static_cast<unsigned>(kSampleThreads)}) {
    ASSERT_NO_FATAL_FAILURE(CheckRandom(4099, 8, threads));
  }
}

TEST_F(SampleKernelTest, ChoosesTheCpusTokenOfALargeVocabulary) {
  ASSERT_NO_FATAL_FAILURE(CheckRandom(32000, 10, 128));
  ASSERT_NO_FATAL_FAILURE(CheckRandom(128257, 6, 256));
  ASSERT_NO_FATAL_FAILURE(CheckRandom(262144, 2, kSampleThreads));
}

// Cuts through tokens that are all alike, which only their ids tell apart, and sums beyond 32 bits.
TEST_F(SampleKernelTest, CutsThroughTies) {
  const int64_t vocab = 5000;
  const std::vector<float> flat(vocab, 2.5f);
  std::vector<float> steps(vocab);
  for (int64_t i = 0; i < vocab; ++i) steps[i] = static_cast<float>(i * 7 % 5);
  for (const auto& row : {flat, steps}) {
    for (const int top_k : {0, 2, 999, 1000, 1001, 4999}) {
      for (const double top_p : {0.2, 0.5, 0.75, 1.0}) {
        const RowSampling low = {.temperature = 0.7, .top_k = top_k, .top_p = top_p, .uniform = 0.4};
        RowSampling last = low;
        last.uniform = 1 - 0x1p-53;
        ASSERT_NO_FATAL_FAILURE(Check({row, row}, {low, last}, 64));
      }
    }
  }
}

// Top-k ends in the middle of some alike, at a low id, and top-p before them at a higher one.
TEST_F(SampleKernelTest, CutsBeforeTies) {
  std::vector<float> row(100, -50.0f);
  std::fill_n(row.begin(), 10, 1.0f);
  row[90] = 5.0f, row[95] = 4.0f;
  const RowSampling first = {.temperature = 1.0, .top_k = 4, .top_p = 0.8, .uniform = 0.1};
  RowSampling second = first;
  second.uniform = 0.95;
  ASSERT_EQ(SampleRow(row.data(), 100, second), 95);
  ASSERT_NO_FATAL_FAILURE(Check({row, row}, {first, second}, 64));
}

TEST_F(SampleKernelTest, ChoosesNothingWhereLogitsAreNoNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    const RowSampling sampling = {.temperature = temperature, .top_p = 0.9, .uniform = 0.3};
    for (const float bad : {kNan, -kNan, kInfinity}) {
      for (const size_t at : {0, 63, 64, 199}) {
        std::vector<float> row(200, 0.25f);
        row[at] = bad;
        ASSERT_EQ(SampleRow(row.data(), 200, sampling), kNoToken);
        ASSERT_NO_FATAL_FAILURE(Check({row, std::vector<float>(200, -kInfinity)}, {sampling, sampling}, 64));
      }
    }
  }
}

}  // namespace
}  // namespace aludel::cuda
