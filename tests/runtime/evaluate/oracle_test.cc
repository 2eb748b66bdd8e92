#include "runtime/evaluate/oracle.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(Diverge, IsZeroForEqualDistributionsWhateverTheShift) {
  const std::vector<float> p = {1.0f, -2.0f, 0.5f};
  const std::vector<float> q = {101.0f, 98.0f, 100.5f};
  EXPECT_NEAR(Diverge(p, q).kl, 0.0, 1e-6);
  EXPECT_NEAR(Diverge(p, q).tv, 0.0, 1e-6);
}

TEST(Diverge, AgreesWithTheDefinition) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4).
  const std::vector<float> p = {std::log(2.0f), 0.0f, 0.0f};
  const std::vector<float> q = {0.0f, std::log(2.0f), 0.0f};
  EXPECT_NEAR(Diverge(p, q).kl, 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(Diverge(p, q).tv, 0.25, 1e-6);
}

TEST(Diverge, SurvivesExtremeLogits) {
  const std::vector<float> p = {1000.0f, -1000.0f};
  const std::vector<float> q = {-1000.0f, 1000.0f};
  EXPECT_NEAR(Diverge(p, q).kl, 2000.0, 1e-6);
  EXPECT_NEAR(Diverge(p, q).tv, 1.0, 1e-12);
}

TEST(NegativeLogProbability, AgreesWithTheDefinition) {
  const std::vector<float> logits = {0.0f, std::log(3.0f)};
  EXPECT_NEAR(NegativeLogProbability(logits, 0), std::log(4.0), 1e-6);
  EXPECT_NEAR(NegativeLogProbability(logits, 1), std::log(4.0 / 3.0), 1e-6);
}

}  // namespace
}  // namespace aludel
