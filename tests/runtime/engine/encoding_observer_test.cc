#include "runtime/engine/encoding_observer.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Waits for a device in every slice.
class WaitingEncoder : public KvEncoder {
 public:
  explicit WaitingEncoder(double* waited) : waited_(waited) {}
  absl::Status Encode(const LayerSlice&, FrameSink& sink) override {
    const Clock::time_point start = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const double seconds = SecondsSince(start);
    sink.Waited(seconds);
    *waited_ += seconds;
    return absl::OkStatus();
  }

 private:
  double* waited_;
};

class NoSink : public FrameSink {
 public:
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t) override { return absl::Span<uint8_t>(); }
  absl::Status Commit(const FrameCoverage&, size_t) override { return absl::OkStatus(); }
};

TEST(EncodingObserver, CountsNoSecondsOfWaitingForTheDevice) {
  NoSink sink;
  double waited = 0;
  EncodingObserver observer(0, std::make_unique<WaitingEncoder>(&waited), &sink);
  float row[1] = {};
  const TensorView one = TensorView::Of(row, 1, 1);
  const Clock::time_point start = Clock::now();
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(observer.OnLayer({.layer = layer, .h = one, .k = one, .v = one}).ok());
  }
  const double all = SecondsSince(start);
  const double seconds = observer.TakeSeconds();
  EXPECT_GE(waited, 0.006);
  EXPECT_GE(seconds, 0);
  EXPECT_LE(seconds, all - waited);
  EXPECT_EQ(observer.TakeSeconds(), 0);
}

}  // namespace
}  // namespace aludel
