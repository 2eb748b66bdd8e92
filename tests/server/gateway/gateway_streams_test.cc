#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "absl/time/clock.h"
#include "server/gateway/gateway.h"
#include "tests/server/gateway/paced_decode.h"
#include "tests/server/gateway/plain_models.h"
#include "tests/server/gateway/stream_load.h"

namespace aludel {
namespace {

// In one process; tests/bench/gateway_streams_bench.cc measures larger runs over real ones.
TEST(GatewayStreams, HoldsManyAtOnceAndLosesNoToken) {
  constexpr int kStreams = 200;
  constexpr int kTokens = 20;
  PacedDecode decode({.interval = std::chrono::milliseconds(100), .count = kTokens});
  const ServedModels models = PlainModels();
  Metrics metrics;
  Router router(
      {{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = {decode.target()}}},
      {.probe_interval = absl::Milliseconds(50), .probe_timeout = absl::Seconds(5)}, &metrics);
  Access access(KeyLimits{});
  Gateway gateway({.completions = {.max_requests = kStreams, .request_timeout = absl::Minutes(1)}}, &access,
                  &models, &router, &metrics);
  auto server = gateway.Listen({});
  ASSERT_TRUE(server.ok());
  while (!router.State("chat").ready) absl::SleepFor(absl::Milliseconds(5));

  int at_once = 0;
  const StreamFigures figures = RunStreams(
      (*server)->port(),
      {.streams = kStreams,
       .tokens = kTokens,
       .ramp = std::chrono::milliseconds(500),
       .timeout = std::chrono::seconds(60),
       .body = R"({"model": "chat", "stream": true, "messages": [{"role": "user", "content": "hi"}]})",
       .when_all_run = [&] { at_once = router.Outstanding("chat"); }});
  EXPECT_EQ(figures.complete, kStreams);
  EXPECT_EQ(at_once, kStreams);
  EXPECT_EQ(figures.token_ms.size(), static_cast<size_t>(kStreams * (kTokens - 1)));
}

}  // namespace
}  // namespace aludel
