#include "tests/kernels/cuda/races.h"

#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"
#include "tests/kernels/cuda/simt.h"

namespace aludel::cuda::simt {
namespace {

constexpr int kThreads = 64;

// Threads write a number each and read that of another; `order` stands between.
void Reverse(const std::function<void()>& order, std::vector<int>* to) {
  to->assign(kThreads, 0);
  Launch({1}, {kThreads}, kThreads * sizeof(int), 1, [&](char* shared) {
    auto* const numbers = reinterpret_cast<int*>(shared);
    const unsigned thread = threadIdx.x;
    numbers[thread] = static_cast<int>(thread);
    order();
    (*to)[thread] = numbers[kThreads - 1 - thread];
  });
}

TEST(Races, ABarrierOrdersABlock) {
  std::vector<int> to;
  Reverse([] { __syncthreads(); }, &to);
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(to[i], kThreads - 1 - i);
}

// The next kernel awaits the end of this one, and nothing before it.
TEST(DependentLaunchDeathTest, AKernelThatLetsTheNextOneBeginAwaitsThoseBeforeIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](int working_blocks, int awaiting_threads) {
    Launch({3}, {kThreads}, 0, 1, [&](char*) {
      AllowNext();
      if (blockIdx.x >= working_blocks) return;
      if (threadIdx.x < awaiting_threads) AwaitEarlier();
    });
  };
  for (const int blocks : {1, 3}) run(blocks, kThreads);
  EXPECT_DEATH(run(3, 0), "has not awaited those before it");
  EXPECT_DEATH(run(3, 32), "with some of its threads");
  // Without AllowNext the end of the kernel in front is what the next one waits for anyway.
  Launch({3}, {kThreads}, 0, 1, [](char*) {});
}

#if defined(__SANITIZE_THREAD__)

class RacesDeathTest : public ::testing::Test {
 protected:
  // In a process that forks with fibers the race detector no longer sees what orders them.
  RacesDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(RacesDeathTest, WhatOrdersNothingIsReported) {
  std::vector<int> to;
  EXPECT_DEATH(Reverse([] {}, &to), "data race");
  // Threads of two warps: neither a shuffle nor the warp's own barrier is enough.
  EXPECT_DEATH(Reverse([] { __shfl_sync(0xffffffffu, 1, 0); }, &to), "data race");
  EXPECT_DEATH(Reverse([] { __syncwarp(); }, &to), "data race");
}

TEST_F(RacesDeathTest, ACopyIsOthersBehindABarrierOnly) {
  const AlignedCopy<int> from(std::vector<int>(kThreads * 4, 7));
  const auto copy = [&](bool barrier) {
    Launch({1}, {kThreads}, kThreads * 16, 1, [&](char* shared) {
      const unsigned thread = threadIdx.x;
      CpAsync16(shared + thread * 16, from.data() + thread * 4, true);
      CpAsyncCommit();
      CpAsyncWait<0>();
      if (barrier) __syncthreads();
      uint32_t rows[4];
      LdMatrix(rows, shared + (kThreads - 1 - thread) * 16);
    });
  };
  copy(true);
  EXPECT_DEATH(copy(false), "data race");
}

#else

TEST(RacesDeathTest, WhatOrdersNothingIsReported) { GTEST_SKIP() << "only ThreadSanitizer reports a race"; }

#endif

}  // namespace
}  // namespace aludel::cuda::simt
