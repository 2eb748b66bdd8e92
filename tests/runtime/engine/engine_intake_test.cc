#include "runtime/engine/engine_intake.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/stream_marks.h"
#include "runtime/engine/engine_stats.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel::engine_testing {
namespace {

TEST_F(EngineTest, AppliesAsManyFramesAsASmallPartOfAStepTakes) {
  EngineStats counters;
  // Of sequences that have ended, so that nothing is reconstructed.
  EngineIntake intake(model_.get(), /*pool=*/nullptr, /*blocks=*/nullptr, &counters, /*wake=*/[] {});
  int released = 0;
  for (int i = 0; i < 30; ++i) {
    intake.Push(
        {.id = 1, .header = {}, .header_bytes = {}, .payload = {}, .release = [&released] { ++released; }},
        {});
  }
  const auto apply = [&](double step_seconds) {
    EXPECT_FALSE(intake.ApplySome({}, step_seconds).has_value());
    EXPECT_TRUE(device_->Synchronize(model_->stream()).ok());
    intake.Settle();  // what the device has read
  };
  apply(/*step_seconds=*/0);
  EXPECT_EQ(released, 8) << "however short a step is";
  apply(/*step_seconds=*/3600);
  if (dynamic_cast<StreamMarks*>(device_.get()) != nullptr) {
    EXPECT_EQ(released, 16) << "what a device takes for a frame is not known";
    return;
  }
  EXPECT_EQ(released, 30) << "another step would take longer than all of them";
  EXPECT_EQ(counters.frames_rejected, 30);
  EXPECT_TRUE(intake.empty());
}

TEST_F(EngineTest, SecondPartsOfSomeWaitForFirstPartsOfOthers) {
  EngineStats counters;
  EngineIntake intake(model_.get(), /*pool=*/nullptr, /*blocks=*/nullptr, &counters, /*wake=*/[] {});
  std::vector<int> released;
  const auto push = [&](int number, uint16_t plane) {
    PendingFrame frame{.id = 1, .header = {}, .header_bytes = {}, .payload = {}, .release = {}};
    frame.header.coverage.plane = plane;
    frame.release = [&released, number] { released.push_back(number); };
    intake.Push(std::move(frame), {});
  };
  for (int i = 0; i < 6; ++i) push(i, /*plane=*/1);
  for (int i = 10; i < 15; ++i) push(i, /*plane=*/0);
  intake.ApplySome({}, /*step_seconds=*/0);
  EXPECT_TRUE(device_->Synchronize(model_->stream()).ok());
  intake.Settle();
  EXPECT_EQ(released, (std::vector<int>{10, 11, 12, 13, 14, 0, 1, 2}));
  EXPECT_FALSE(intake.empty());
  intake.ReleaseAll();
  EXPECT_EQ(released.size(), 11u);
  EXPECT_TRUE(intake.empty());
}

}  // namespace
}  // namespace aludel::engine_testing
