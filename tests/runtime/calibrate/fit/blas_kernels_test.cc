#include "runtime/calibrate/fit/blas_kernels.h"

#include <gtest/gtest.h>

namespace aludel {
namespace {

TEST(BlasKernels, AProcessorThatIsNotKnownGetsThoseOfItsInstructions) {
  EXPECT_EQ(BetterBlasKernels("Prescott", /*has_avx2=*/true, /*has_avx512=*/true), "SkylakeX");
  EXPECT_EQ(BetterBlasKernels("Prescott", true, false), "Haswell");
  EXPECT_EQ(BetterBlasKernels("Barcelona", true, false), "Haswell");
}

TEST(BlasKernels, WhatOpenBlasChoseWithAvxStays) {
  for (const char* const chosen : {"Haswell", "SkylakeX", "Cooperlake", "SapphireRapids", "Zen", "armv8"}) {
    EXPECT_EQ(BetterBlasKernels(chosen, true, true), "") << chosen;
  }
}

TEST(BlasKernels, AProcessorWithoutAvx2IsLeftAlone) {
  EXPECT_EQ(BetterBlasKernels("Prescott", false, false), "");
  EXPECT_EQ(BetterBlasKernels("Nehalem", false, true), "");
}

}  // namespace
}  // namespace aludel
