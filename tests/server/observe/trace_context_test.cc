#include "server/observe/trace_context.h"

#include <gtest/gtest.h>

namespace aludel {
namespace {

constexpr char kHeader[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContext, ReadsAndWritesTheStandardsHeader) {
  const auto context = TraceContext::Parse(kHeader);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->TraceIdHex(), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(context->SpanIdHex(), "00f067aa0ba902b7");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->ToTraceparent(), kHeader);
}

TEST(TraceContext, KeepsTraceAndVerdictInAChild) {
  TraceContext context = *TraceContext::Parse(kHeader);
  context.sampled = false;
  const TraceContext child = context.NewChild();
  EXPECT_EQ(child.trace_id, context.trace_id);
  EXPECT_NE(child.span_id, context.span_id);
  EXPECT_FALSE(child.sampled);
}

TEST(TraceContext, AcceptsALaterVersionThatSaysMore) {
  EXPECT_TRUE(
      TraceContext::Parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what").has_value());
}

TEST(TraceContext, IgnoresWhatIsNotOfTheStandardsForm) {
  for (const char* bad : {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                          "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                          "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                          "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                          "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                          "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
                          "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
                          "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
                          "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01"}) {
    EXPECT_FALSE(TraceContext::Parse(bad).has_value()) << bad;
  }
}

TEST(TraceContext, SamplesTheShareItIsAskedFor) {
  EXPECT_FALSE(TraceContext::NewTrace(0).sampled);
  EXPECT_TRUE(TraceContext::NewTrace(1).sampled);
  EXPECT_NE(TraceContext::NewTrace(1).trace_id, TraceContext::NewTrace(1).trace_id);
}

}  // namespace
}  // namespace aludel
