#include "server/host/device_watch.h"

#include <atomic>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device_health.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(DeviceWatch, EndsTheProcessOnceAndTakesReadinessAwayAtOnce) {
  Timer timer;
  std::atomic<int> ended = 0;
  const DeviceWatch watch(&timer, [&] { ++ended; });
  ReportSlowProduct("[4096, 4096] bf16 by 6144 x 4096");
  EXPECT_TRUE(DeviceWatch::status().ok());
  EXPECT_EQ(ended, 0);

  ReportLostDevice(
      absl::InternalError("cuda:0: run the work on a stream: an illegal memory access was encountered"));
  ReportLostDevice(absl::InternalError("what the first one caused"));
  EXPECT_EQ(DeviceWatch::status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(DeviceWatch::status().message()), HasSubstr("an illegal memory access"));
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (ended == 0 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(10));
  absl::SleepFor(absl::Seconds(2));
  EXPECT_EQ(ended, 1);
}

TEST(SlowProducts, AreCounted) {
  const int64_t before = SlowProductsMet().shapes;
  ReportSlowProduct("a");
  ReportSlowProduct("b");
  EXPECT_EQ(SlowProductsMet().shapes, before + 2);
  EXPECT_EQ(SlowProductsMet().latest, "b");
}

TEST(TimedProducts, AreCounted) {
  const TimedProducts before = ProductsTimed();
  ReportTimedProduct(/*improved=*/true, 1.5);
  ReportTimedProduct(/*improved=*/false, 2.0);
  const TimedProducts after = ProductsTimed();
  EXPECT_EQ(after.shapes, before.shapes + 2);
  EXPECT_EQ(after.improved, before.improved + 1);
  EXPECT_EQ(after.milliseconds, before.milliseconds + 3.5);
}

}  // namespace
}  // namespace aludel
