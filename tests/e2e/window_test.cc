#include <csignal>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr size_t kTokens = 800;
// Steps of 32 tokens, eight layers: four of them are the least window there is, much less than the
// prompt's frames.
constexpr char kSmallSteps[] = "max_num_batched_tokens: 32";
constexpr char kSmallWindow[] = "handoff_window_bytes: 4096\n";
constexpr int kWindowBytes = 600 << 10;  // what that window is at most

std::vector<int32_t> LongPrompt(size_t number) {
  static const auto* const questions = new std::vector<std::vector<int32_t>>(DemoPrompts(40));
  std::vector<int32_t> prompt;
  for (size_t i = number; prompt.size() < kTokens; ++i) {
    const std::vector<int32_t>& one = (*questions)[i % questions->size()];
    prompt.insert(prompt.end(), one.begin(), one.end());
  }
  prompt.resize(kTokens);
  return prompt;
}

double Stalls(ServerProcess& prefill, const std::string& reason) {
  return prefill.Metric(absl::StrCat("aludel_handoff_stalls_total{for=\"", reason, "\"}"));
}

TEST(Window, ALongPromptComesWholeThroughASmallOne) {
  Fleet roomy({.engine = kSmallSteps});
  ASSERT_TRUE(roomy.Start());
  const Answer expected = roomy.Ask(Fleet::Request(LongPrompt(0), 8));
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  ASSERT_EQ(expected.started.plan(), "remote") << expected.started.fallback_reason();

  // The link is slower than the computation, so that this has to wait for it.
  Fleet tight({.bytes_per_second = 8e6, .both = kSmallWindow, .engine = kSmallSteps});
  ASSERT_TRUE(tight.Start());
  for (const char* computed : {"computed", "from the store"}) {
    const Answer answer = tight.Ask(Fleet::Request(LongPrompt(0), 8));
    ASSERT_TRUE(answer.status.ok()) << computed << ": " << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << computed << ": " << answer.started.fallback_reason();
    EXPECT_EQ(answer.tokens, expected.tokens) << computed;
    EXPECT_GT(answer.started.payload_bytes(), 4 * kWindowBytes);
  }
  EXPECT_GT(Stalls(tight.prefill(), "link") + Stalls(tight.prefill(), "receiver"), 0);
  EXPECT_TRUE(tight.DecodeIsIdle());
  EXPECT_TRUE(tight.PrefillIsIdle());
}

// Stored frames are sent while the engine encodes those behind them: of a window that has room for a few steps, neither has
// all of it, and none waits for the other for ever.
TEST(Window, AStoredBeginningAndWhatIsComputedBehindItShareASmallOne) {
  Fleet roomy({.engine = kSmallSteps});
  ASSERT_TRUE(roomy.Start());
  Fleet tight({.bytes_per_second = 8e6, .both = kSmallWindow, .engine = kSmallSteps});
  ASSERT_TRUE(tight.Start());
  for (const size_t stored : {kTokens / 4, kTokens / 2, kTokens - 40}) {
    std::vector<int32_t> prompt = LongPrompt(stored);
    const Answer expected = roomy.Ask(Fleet::Request(prompt, 8));
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    const std::vector<int32_t> beginning(prompt.begin(), prompt.begin() + static_cast<int64_t>(stored));
    ASSERT_TRUE(tight.Ask(Fleet::Request(beginning, 2)).status.ok());
    const Answer answer = tight.Ask(Fleet::Request(prompt, 8));
    ASSERT_TRUE(answer.status.ok()) << stored << ": " << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << stored << ": " << answer.started.fallback_reason();
    EXPECT_EQ(answer.tokens, expected.tokens) << stored;
  }
  EXPECT_EQ(tight.prefill().Metric("aludel_store_lookups_total{result=\"partial\"}"), 3);
  EXPECT_GT(Stalls(tight.prefill(), "link") + Stalls(tight.prefill(), "receiver"), 0);
  EXPECT_TRUE(tight.DecodeIsIdle());
  EXPECT_TRUE(tight.PrefillIsIdle());
}

// As a GPU's server beside one on a CPU: its steps are more than its receiver gives credit for.
TEST(Window, AProducerOfLargerStepsTakesThemAsSmallAsItsReceiversWindow) {
  Fleet roomy({.engine = kSmallSteps});
  ASSERT_TRUE(roomy.Start());
  const Answer expected = roomy.Ask(Fleet::Request(LongPrompt(0), 8));
  ASSERT_TRUE(expected.status.ok()) << expected.status;

  Fleet mixed({.both = kSmallWindow, .engine = kSmallSteps, .prefill_engine = "max_num_batched_tokens: 256"});
  ASSERT_TRUE(mixed.Start());
  for (const char* computed : {"computed", "from the store"}) {
    const Answer answer = mixed.Ask(Fleet::Request(LongPrompt(0), 8));
    ASSERT_TRUE(answer.status.ok()) << computed << ": " << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << computed << ": " << answer.started.fallback_reason();
    EXPECT_EQ(answer.tokens, expected.tokens) << computed;
  }
  EXPECT_TRUE(mixed.DecodeIsIdle());
  EXPECT_TRUE(mixed.PrefillIsIdle());
}

TEST(Window, ManyShareASmallArenaAndWaitForIt) {
  Fleet fleet({.bytes_per_second = 8e6,
               .send_arena_bytes = 3 * kWindowBytes / 2,
               .both = kSmallWindow,
               .engine = kSmallSteps});
  ASSERT_TRUE(fleet.Start());
  std::vector<std::future<Answer>> answers;
  for (size_t i = 0; i < 3; ++i) {
    answers.push_back(
        std::async(std::launch::async, [&fleet, i] { return fleet.Ask(Fleet::Request(LongPrompt(i), 2)); }));
  }
  for (auto& one : answers) {
    const Answer answer = one.get();
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  }
  EXPECT_GT(Stalls(fleet.prefill(), "arena"), 0);
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

TEST(Window, WaitingForTheArenaEndsWithTheDeadline) {
  Fleet fleet({.bytes_per_second = 2e6,
               .send_arena_bytes = 3 * kWindowBytes / 2,
               .both = kSmallWindow,
               .engine = kSmallSteps});
  ASSERT_TRUE(fleet.Start());
  auto first = std::async(std::launch::async, [&] { return fleet.Ask(Fleet::Request(LongPrompt(0), 2)); });
  // The first one holds the arena for 1.6 s, which its link takes; the second waits for it longer than a prefill takes on
  // a busy machine, so that it is not shed.
  absl::SleepFor(absl::Milliseconds(300));
  const Answer second = fleet.Ask(Fleet::Request(LongPrompt(1), 2), absl::Milliseconds(900));
  EXPECT_TRUE(absl::IsDeadlineExceeded(second.status)) << second.status;
  EXPECT_TRUE(first.get().status.ok());
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

TEST(Window, ADeadSenderLeavesNothingBehind) {
  Fleet fleet({.bytes_per_second = 1e6, .both = kSmallWindow, .engine = kSmallSteps});
  ASSERT_TRUE(fleet.Start());
  auto answer = std::async(std::launch::async, [&] { return fleet.Ask(Fleet::Request(LongPrompt(0), 2)); });
  absl::SleepFor(absl::Milliseconds(700));
  fleet.prefill().Signal(SIGKILL);
  const Answer ended = answer.get();
  ASSERT_TRUE(ended.status.ok()) << ended.status;
  EXPECT_EQ(ended.started.plan(), "fallback");
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

}  // namespace
}  // namespace aludel
