#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"
#include "tests/testing/frozen_thread.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Prompt(int tokens) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back(10 + (i * 37) % 2000);
  return prompt;
}
const std::vector<int32_t> kShort = Prompt(20);
const std::vector<int32_t> kLong = Prompt(400);

// At this rate the raw cache of kLong takes four seconds.
constexpr double kSlowLink = 400e3;

Answer AskExact(Fleet& fleet, const std::vector<int32_t>& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request = Fleet::Request(prompt, max_tokens, "");
  request.set_fidelity(v1::FIDELITY_EXACT);
  return fleet.Ask(request);
}

TEST(Lifecycle, AHandoffThatFailsGoesOnWithTheNextPrefillServer) {
  Fleet fleet({.bytes_per_second = kSlowLink, .second_prefill = true});
  ASSERT_TRUE(fleet.Start());
  const Answer local = AskExact(fleet, kLong, 8);
  auto pending = std::async(std::launch::async, [&] { return fleet.Ask(Fleet::Request(kLong, 8)); });
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (fleet.decode().Metric("aludel_handoff_frames_total{direction=\"received\",format=\"raw\"}") < 1 &&
         absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  fleet.prefill().Signal(SIGKILL);  // some of its frames have arrived and are forgotten
  const Answer answer = pending.get();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  EXPECT_EQ(answer.tokens, local.tokens);
  EXPECT_EQ(fleet.decode().Metric("aludel_replans_total{reason=\"unavailable\"}"), 1);
  EXPECT_EQ(fleet.decode().Metric("aludel_tickets_total{end=\"abandoned\"}"), 1);
  EXPECT_EQ(fleet.decode().Metric("aludel_tickets_total{end=\"completed\"}"), 1);
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST(Lifecycle, FramesThatTheLinkLosesAreMissedLongBeforeTheDeadline) {
  Fleet fleet({.handoff_timeout_ms = 20000, .link = "drop_rate: 0.3"});
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(kLong, 4));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "fallback");
  EXPECT_THAT(answer.started.fallback_reason(), HasSubstr("frames have arrived and no more come"));
  EXPECT_LT(answer.took, absl::Seconds(10));
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST(Lifecycle, AWedgedThreadTakesReadinessAwayAndPeersLookElsewhere) {
  Fleet fleet({.both = "watchdog_timeout_ms: 1500"});
  ASSERT_TRUE(fleet.Start());
  for (const std::string name : {"aludel-engine", "aludel-tcp"}) {
    {
      const FrozenThread frozen(fleet.prefill().pid(), name);
      if (!frozen.ok()) GTEST_SKIP() << frozen.why();
      EXPECT_TRUE(fleet.WaitPrefillState("down")) << name;
      EXPECT_EQ(HttpGet(fleet.prefill().admin_port(), "/ready"), "");
      EXPECT_EQ(fleet.Ask(Fleet::Request(kShort, 2)).started.plan(), "local");
    }
    EXPECT_TRUE(fleet.WaitPrefillState("ready")) << name;
    EXPECT_EQ(HttpGet(fleet.prefill().admin_port(), "/ready"), "ok\n");
  }
  EXPECT_THAT(fleet.prefill().Log(), HasSubstr("the engine has made no progress"));
  EXPECT_THAT(fleet.prefill().Log(), HasSubstr("the transport's progress thread has made no progress"));
  EXPECT_EQ(fleet.Ask(Fleet::Request(kShort, 2)).started.plan(), "remote");
}

TEST(Lifecycle, AWedgedThreadDoesNotKeepAServerFromStopping) {
  Fleet fleet({.handoff_timeout_ms = 1000});
  ASSERT_TRUE(fleet.Start());
  std::optional<FrozenThread> frozen(std::in_place, fleet.decode().pid(), "aludel-engine");
  if (!frozen->ok()) GTEST_SKIP() << frozen->why();
  fleet.decode().Signal(SIGTERM);
  // 3 s to drain, 1 s of a handoff and 30 s: nothing else ends what waits for the engine's thread.
  const std::string last_words = "a thread does not end 34 s after the signal to stop: exiting";
  const absl::Time until = absl::Now() + absl::Seconds(90);
  while (fleet.decode().Log().find(last_words) == std::string::npos && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_THAT(fleet.decode().Log(), HasSubstr(last_words));
  frozen.reset();  // who is traced is not reaped
  EXPECT_EQ(WEXITSTATUS(fleet.decode().WaitExit()), 1);
}

TEST(Lifecycle, AnAddressSpaceThatIsTooSmallIsNamed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow needs terabytes of addresses";
#endif
  const std::string config = absl::StrCat(::testing::TempDir(), "small.textproto");
  std::ofstream(config) << "listen: '127.0.0.1:" << FreePort()
                        << "' admin_listen: '' engine { directory: 'deploy/demo/base' }";
  // Whether it is a thread, a mapping or a library that fails first depends on the machine; gRPC itself may then
  // abort or wait for ever, hence -k.
  for (const int megabytes : {120, 160, 240, 400, 700}) {
    const std::string command = absl::StrCat("ulimit -v ", megabytes * 1024, "; timeout -k 1 10 ",
                                             ALUDEL_BIN_DIR, "/aludel-decode --config ", config, " 2>&1");
    FILE* output = popen(command.c_str(), "r");
    ASSERT_NE(output, nullptr);
    std::string log(1 << 16, '\0');
    log.resize(fread(log.data(), 1, log.size(), output));
    pclose(output);
    if (log.find("error while loading shared libraries") != std::string::npos) continue;
    EXPECT_THAT(log,
                HasSubstr(absl::StrCat("the address space is limited to ", megabytes, " MB (ulimit -v)")));
    EXPECT_EQ(log.find("terminate called"), std::string::npos) << log;
  }
}

TEST(Lifecycle, DeadlinesDoNotMoveWithTheWallClock) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer wants to be loaded first";
#endif
  const std::string file = absl::StrCat(::testing::TempDir(), "clock_jump");
  const auto set_clock = [&](int seconds) { std::ofstream(file) << seconds; };
  set_clock(0);
  setenv("LD_PRELOAD", ALUDEL_CLOCK_JUMP, 1);
  setenv("CLOCK_JUMP_FILE", file.c_str(), 1);
  Fleet fleet({.bytes_per_second = kSlowLink, .handoff_timeout_ms = 15000});
  const bool started = fleet.Start();
  unsetenv("LD_PRELOAD");
  ASSERT_TRUE(started);
  for (const int jump : {7200, -7200}) {
    auto pending = std::async(std::launch::async,
                              [&] { return fleet.Ask(Fleet::Request(Prompt(300 + jump / 720), 4)); });
    EXPECT_TRUE(fleet.decode().WaitMetric("aludel_tickets_open", 1));
    set_clock(jump);
    const Answer answer = pending.get();
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
    set_clock(0);
  }
  // And a deadline that passes does so in its own time.
  set_clock(-7200);
  const Answer hurried = fleet.Ask(Fleet::Request(kLong, 8), absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(hurried.status)) << hurried.status;
  EXPECT_LT(hurried.took, absl::Seconds(4));
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

}  // namespace
}  // namespace aludel
