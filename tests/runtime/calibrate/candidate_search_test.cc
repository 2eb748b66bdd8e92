#include "runtime/calibrate/candidate_search.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kRawBytes = 4096;

// A world in which the loss falls with the rate and with each recomputed layer, and a step that is coarser by a
// factor costs that factor in bytes.
class World : public CandidateFitter {
 public:
  // `needed[p]`: bytes per token at which the loss of p recomputed layers is 1; none: it never falls below 2.
  explicit World(std::vector<std::optional<double>> needed) : needed_(std::move(needed)) {}

  absl::StatusOr<AludelCandidate> Fit(int recomputed_layers, double bytes_per_token) override {
    fits.emplace_back(recomputed_layers, bytes_per_token);
    if (fails_at == static_cast<int>(fits.size())) return absl::CancelledError("stopped");
    AludelCandidate candidate;
    candidate.shape.recomputed_layers = recomputed_layers;
    candidate.encoder.resize(1);
    candidate.encoder[0].grid.step = static_cast<float>(1 / bytes_per_token);
    candidate.decoders.resize(1);
    candidate.decoders[0].weights.groups.resize(1);
    candidate.decoders[0].weights.groups[0].grid = candidate.encoder[0].grid;
    return Measured(std::move(candidate));
  }

  absl::Status Measure(AludelCandidate* candidate) override {
    // Decoders read what encoders write.
    same_grids.push_back(candidate->decoders[0].weights.groups[0].grid.step ==
                         candidate->encoder[0].grid.step);
    *candidate = Measured(std::move(*candidate));
    return absl::OkStatus();
  }

  double BytesAt(const AludelCandidate&, float step) override { return 1.0 / step; }

  std::vector<std::pair<int, double>> fits;
  std::vector<bool> same_grids;
  int fails_at = 0;

 private:
  AludelCandidate Measured(AludelCandidate candidate) const {
    const double bytes = 1.0 / candidate.encoder[0].grid.step;
    const std::optional<double> needed = needed_[candidate.shape.recomputed_layers];
    const double kl = needed.has_value() ? *needed / bytes : 2 + 1 / bytes;
    candidate.measured = {{.kl = 0.9 * kl, .kl_bound = kl, .bytes_per_token = bytes}};
    return candidate;
  }

  std::vector<std::optional<double>> needed_;
};

SearchGoal Goal(int fewest, int most) {
  return {.max_kl = 1, .raw_bytes = kRawBytes, .fewest_recomputed = fewest, .most_recomputed = most};
}

TEST(FindCandidate, NarrowsTheRateOfTheFirstStructureThatMeetsTheLoss) {
  World world({std::nullopt, 70, 1});
  const auto found = FindCandidate(Goal(0, 2), world);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->shape.recomputed_layers, 1);
  EXPECT_LE(found->kl_bound(), 1);
  EXPECT_GE(found->bytes(), 70);
  EXPECT_LE(found->bytes(), 1.33 * 70);
  EXPECT_THAT(world.same_grids, Each(true));
}

TEST(FindCandidate, BeginsWithTheFewestRecomputedLayersThatAreAllowed) {
  World world({10, 10, 10});
  const auto found = FindCandidate(Goal(2, 2), world);
  ASSERT_TRUE(found.ok()) << found.status();
  for (const auto& [recomputed, bytes] : world.fits) EXPECT_EQ(recomputed, 2);
}

TEST(FindCandidate, NamesTheFloorOfEveryStructureWhereNoneMeetsTheLoss) {
  World world({std::nullopt, std::nullopt});
  const absl::Status status = FindCandidate(Goal(0, 1), world).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(world.fits.size(), 4u) << "two rates for each";
  for (const char* part : {"--max-kl 1 ", "p=0, 256 bytes/token: 2.0039 (mean 1.8035)",
                           "; p=0, 64 bytes/token", "; p=1, 256 bytes/token", "; p=1, 64 bytes/token"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(FindCandidate, TakesWhatItHasWhenItsTimeIsOver) {
  World world({70});
  SearchGoal goal = Goal(0, 0);
  goal.time_is_up = [&world] { return world.fits.size() == 1; };
  const auto found = FindCandidate(goal, world);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_LE(found->kl_bound(), 1);
  EXPECT_EQ(world.fits.size(), 1u);
}

TEST(FindCandidate, FitsNothingMoreWhenItsTimeEndsWhileItMeasures) {
  World world({70});
  SearchGoal goal = Goal(0, 0);
  goal.time_is_up = [&world] { return world.same_grids.size() >= 3; };
  const auto found = FindCandidate(goal, world);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(world.fits.size(), 1u);
  EXPECT_EQ(world.same_grids.size(), 3u) << "nor measures it";
}

TEST(FindCandidate, NamesTheBudgetWhereNothingMetTheLossUntilItWasOver) {
  World world({std::nullopt, 70});
  SearchGoal goal = Goal(0, 1);
  goal.time_is_up = [] { return true; };
  const absl::Status status = FindCandidate(goal, world).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(world.fits.size(), 1u) << "one is tried in any case";
  for (const char* part : {"--budget", "--max-kl 1;", "p=0, 256 bytes/token: 2.0039"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(FindCandidate, EndsWithTheFitThatFails) {
  World world({70});
  world.fails_at = 2;
  EXPECT_EQ(FindCandidate(Goal(0, 0), world).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(world.fits.size(), 2u);
}

}  // namespace
}  // namespace aludel
