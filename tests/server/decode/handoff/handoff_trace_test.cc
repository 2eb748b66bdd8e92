#include "server/decode/handoff/handoff_trace.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

FrameHeader FrameOf(uint32_t sequence) {
  FrameHeader header;
  header.sequence = sequence;
  header.coverage.first_layer = static_cast<uint16_t>(2 * sequence);
  header.coverage.layers = 2;
  header.coverage.tokens = 64;
  header.payload_bytes = 100;
  return header;
}

TEST(HandoffTrace, FillsInBothSidesTimesOfEachFrame) {
  const absl::Time begin = absl::FromUnixSeconds(1000);
  HandoffTrace trace;
  trace.Begin(begin);
  v1::RunComputed computed;
  v1::FrameTimes* times = computed.add_frames();
  times->set_encoded_from_us(1000);
  times->set_sent_us(2000);
  trace.Producer(computed);
  trace.Received(FrameOf(1), begin + absl::Milliseconds(4));
  trace.Received(FrameOf(0), begin + absl::Milliseconds(3));
  trace.Applied(0, begin + absl::Milliseconds(5));
  v1::RequestTrace filled;
  trace.Fill(&filled);
  ASSERT_EQ(filled.frames_size(), 2);
  EXPECT_EQ(filled.frames(0).first_layer(), 0);
  EXPECT_EQ(filled.frames(0).tokens(), 64);
  EXPECT_EQ(filled.frames(0).bytes(), 100);
  EXPECT_DOUBLE_EQ(filled.frames(0).encoded_from(), 0.001);
  EXPECT_DOUBLE_EQ(filled.frames(0).sent(), 0.002);
  EXPECT_DOUBLE_EQ(filled.frames(0).received(), 0.003);
  EXPECT_DOUBLE_EQ(filled.frames(0).applied(), 0.005);
  // Neither told of by the prefill server nor read yet.
  EXPECT_EQ(filled.frames(1).first_layer(), 2);
  EXPECT_EQ(filled.frames(1).sent(), 0);
  EXPECT_DOUBLE_EQ(filled.frames(1).received(), 0.004);
  EXPECT_EQ(filled.frames(1).applied(), 0);
  EXPECT_EQ(filled.first_token(), 0);
  trace.FirstToken(begin + absl::Milliseconds(6));
  v1::RequestTrace again;
  trace.Fill(&again);
  EXPECT_DOUBLE_EQ(again.first_token(), 0.006);
}

TEST(HandoffTrace, FillsInSoManyFramesAtMost) {
  HandoffTrace trace;
  trace.Begin(absl::FromUnixSeconds(1000));
  for (uint32_t i = 0; i < HandoffTrace::kMaxFrames + 3; ++i)
    trace.Received(FrameOf(i), absl::FromUnixSeconds(1001));
  v1::RequestTrace filled;
  trace.Fill(&filled);
  EXPECT_EQ(filled.frames_size(), HandoffTrace::kMaxFrames);
  EXPECT_EQ(filled.frames_left_out(), 3);
}

}  // namespace
}  // namespace aludel
