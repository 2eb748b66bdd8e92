#include "runtime/calibrate/aludel/latent_spectrum.h"

#include <vector>

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(LatentSpectrum, IsOfTheLatentsThatAreSent) {
  // 16 of 20 are sent: 8 + 4 + 2 x 1 + 12 x .5 = 20 of 22 altogether.
  std::vector<double> energy = {8, 4, 1, 1};
  energy.resize(16, 0.5);
  energy.resize(20, 0.5);
  const LatentSpectrum spectrum = MakeSpectrum(energy, {3, 5, 16}, 0.25f);
  EXPECT_EQ(spectrum.group.first_layer, 3);
  EXPECT_EQ(spectrum.fitted, 20);
  EXPECT_DOUBLE_EQ(spectrum.sent, 20.0 / 22);
  EXPECT_DOUBLE_EQ(spectrum.first_eighth, 12.0 / 20);
  EXPECT_DOUBLE_EQ(spectrum.first_quarter, 14.0 / 20);
  EXPECT_DOUBLE_EQ(spectrum.first_half, 16.0 / 20);
}

TEST(LatentSpectrum, PartsOfFewLatentsAreRoundedUp) {
  const std::vector<double> energy = {3, 1, 1};
  const LatentSpectrum spectrum = MakeSpectrum(energy, {0, 1, 3}, 1);
  EXPECT_DOUBLE_EQ(spectrum.first_eighth, 0.6);
  EXPECT_DOUBLE_EQ(spectrum.first_quarter, 0.6);
  EXPECT_DOUBLE_EQ(spectrum.first_half, 0.8);
  EXPECT_DOUBLE_EQ(spectrum.sent, 1);
  EXPECT_EQ(MakeSpectrum(std::vector<double>{0.0, 0.0}, {0, 1, 2}, 1).first_half, 0) << "of a constant cache";
}

}  // namespace
}  // namespace aludel
