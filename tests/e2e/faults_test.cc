#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// At this rate the raw cache of kLong (1.6 MB) takes four seconds and that of kShort a fifth of one, so that
// a test can act in the middle of a handoff.
constexpr double kSlowLink = 400e3;

std::vector<int32_t> Prompt(int tokens) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back(10 + (i * 37) % 2000);
  return prompt;
}
const std::vector<int32_t> kShort = Prompt(20);
const std::vector<int32_t> kLong = Prompt(400);

class Faults : public ::testing::Test {
 protected:
  // A request in the background whose frames are on the link.
  std::future<Answer> AskUntilFramesFlow(Fleet& fleet, const std::vector<int32_t>& prompt,
                                         uint32_t max_tokens) {
    auto answer = std::async(std::launch::async, [&fleet, prompt, max_tokens] {
      return fleet.Ask(Fleet::Request(prompt, max_tokens));
    });
    EXPECT_TRUE(fleet.decode().WaitMetric("aludel_tickets_open", 1));
    const absl::Time until = absl::Now() + absl::Seconds(10);
    while (fleet.decode().Metric("aludel_handoff_frames_total{direction=\"received\",format=\"raw\"}") < 1 &&
           absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    return answer;
  }
};

TEST_F(Faults, KilledPrefillIsReplacedByLocalPrefillAndItsRestartIsNoticed) {
  Fleet fleet({.bytes_per_second = kSlowLink});
  ASSERT_TRUE(fleet.Start());
  const Answer local = fleet.Ask([] {
    v1::GenerateRequest request = Fleet::Request(kLong, 8, "");
    request.set_fidelity(v1::FIDELITY_EXACT);
    return request;
  }());
  ASSERT_TRUE(local.status.ok()) << local.status;
  EXPECT_EQ(local.started.plan(), "local");

  std::future<Answer> pending = AskUntilFramesFlow(fleet, kLong, 8);
  fleet.prefill().Signal(SIGKILL);
  const Answer answer = pending.get();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "fallback");
  EXPECT_THAT(answer.started.fallback_reason(), HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(answer.tokens, local.tokens);
  EXPECT_LT(answer.took, absl::Seconds(10));  // long before the handoff's deadline of 20 s
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_EQ(fleet.decode().Metric("aludel_fallbacks_total{reason=\"unavailable\"}"), 1);

  EXPECT_TRUE(fleet.WaitPrefillState("down"));
  EXPECT_EQ(fleet.Ask(Fleet::Request(kShort, 2)).started.plan(), "local");
  ASSERT_TRUE(fleet.StartPrefill());
  ASSERT_TRUE(fleet.WaitPrefillState("ready"));
  const Answer again = fleet.Ask(Fleet::Request(kShort, 2));
  EXPECT_EQ(again.started.plan(), "remote") << again.started.fallback_reason();
}

TEST_F(Faults, StoppedPrefillIsReplacedByTheDeadlineAndComesBackByItself) {
  Fleet fleet({.bytes_per_second = kSlowLink, .handoff_timeout_ms = 3000});
  ASSERT_TRUE(fleet.Start());
  std::future<Answer> pending = AskUntilFramesFlow(fleet, kLong, 4);
  fleet.prefill().Signal(SIGSTOP);
  const Answer answer = pending.get();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "fallback");
  EXPECT_THAT(answer.started.fallback_reason(), HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_GT(answer.took, absl::Seconds(2));
  EXPECT_LT(answer.took, absl::Seconds(10));
  EXPECT_TRUE(fleet.WaitPrefillState("down", absl::Seconds(5)));
  EXPECT_EQ(fleet.Ask(Fleet::Request(kShort, 2)).started.plan(), "local");
  EXPECT_TRUE(fleet.DecodeIsIdle());

  fleet.prefill().Signal(SIGCONT);
  ASSERT_TRUE(fleet.WaitPrefillState("ready"));
  EXPECT_TRUE(fleet.PrefillIsIdle());
  const Answer again = fleet.Ask(Fleet::Request(kShort, 2));
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.started.plan(), "remote") << again.started.fallback_reason();
}

TEST_F(Faults, ClientThatGoesWhileTokensFlowFreesItsBlocks) {
  Fleet fleet({});
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(kLong, 600), absl::Seconds(60),
                                  [](grpc::ClientContext& context, const v1::GenerateEvent& event) {
                                    if (event.has_token()) context.TryCancel();
                                  });
  EXPECT_TRUE(absl::IsCancelled(answer.status)) << answer.status;
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

TEST_F(Faults, ClientThatGoesDuringTheHandoffEndsItEverywhere) {
  Fleet fleet({.bytes_per_second = kSlowLink});
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(kLong, 8), absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status)) << answer.status;
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_TRUE(fleet.PrefillIsIdle());
  // Counted as what it died of: the client's going, or the deadline that went with its call.
  const auto ended = [&] {
    double sum = 0;
    for (const char* outcome : {"cancelled", "deadline_exceeded"}) {
      sum += std::max(0.0,
                      fleet.decode().Metric(absl::StrCat(
                          "aludel_handoff_seconds_count{direction=\"received\",outcome=\"", outcome, "\"}")));
    }
    return sum;
  };
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (ended() != 1 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(ended(), 1);
  // The client was in a hurry; the prefill server is not to blame.
  EXPECT_EQ(fleet.Ask(Fleet::Request(kShort, 2)).started.plan(), "remote");
}

TEST_F(Faults, TooLongPromptIsRefusedWithBothNumbers) {
  Fleet fleet({});
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(1500), 1));
  EXPECT_TRUE(absl::IsInvalidArgument(answer.status)) << answer.status;
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("1500"));
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("1024"));
  const Answer unknown = fleet.Ask(Fleet::Request(kShort, 1, "zip"));
  EXPECT_TRUE(absl::IsInvalidArgument(unknown.status));
  EXPECT_THAT(std::string(unknown.status.message()), HasSubstr("found \"zip\", want one of raw"));
  const Answer foreign = fleet.Ask(Fleet::Request({5, 99999}, 1));
  EXPECT_TRUE(absl::IsInvalidArgument(foreign.status));
}

TEST_F(Faults, WhatTheServerCouldNeverHoldIsNotToBeTriedAgainThere) {
  Fleet fleet({.kv_blocks = 40});  // 640 tokens
  ASSERT_TRUE(fleet.Start());
  v1::GenerateRequest choices = Fleet::Request(kShort, 1);
  choices.mutable_sampling()->set_choices(100);
  v1::GenerateRequest schema = Fleet::Request(kShort, 1);
  schema.mutable_constraint()->set_json_schema(R"({"type": "string", "maxLength": 900000})");
  const std::pair<v1::GenerateRequest, const char*> cases[] = {
      {choices, "100 choices asked for"},
      {schema, "states"},
      {Fleet::Request(Prompt(300), 400), "need 44 KV blocks, this server has 40"}};
  for (const auto& [request, message] : cases) {
    const Answer answer = fleet.Ask(request);
    EXPECT_TRUE(absl::IsFailedPrecondition(answer.status)) << answer.status;
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST_F(Faults, WithoutRoomARequestIsRefusedAtOnce) {
  Fleet fleet({.kv_blocks = 40});  // 640 tokens
  ASSERT_TRUE(fleet.Start());
  bool asked = false;
  const Answer first = fleet.Ask(Fleet::Request(kLong, 200), absl::Seconds(60),
                                 [&](grpc::ClientContext&, const v1::GenerateEvent& event) {
                                   if (asked || !event.has_token()) return;
                                   asked = true;
                                   const Answer second = fleet.Ask(Fleet::Request(kLong, 10));
                                   EXPECT_TRUE(absl::IsResourceExhausted(second.status)) << second.status;
                                   EXPECT_THAT(std::string(second.status.message()), HasSubstr("KV blocks"));
                                   EXPECT_LT(second.took, absl::Seconds(5));
                                 });
  EXPECT_TRUE(first.status.ok()) << first.status;
  EXPECT_TRUE(asked);
  EXPECT_EQ(first.tokens.size(), 200);
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST_F(Faults, ManyRequestsAtOnceSomeCancelledLeaveNothingBehind) {
  constexpr int kClients = 6;
  constexpr int kRequestsEach = 10;
  Fleet fleet({.max_num_seqs = 4});  // fewer than clients: some are refused
  ASSERT_TRUE(fleet.Start());
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < kRequestsEach; ++i) {
        const bool cancels = (client + i) % 3 == 0;
        const Answer answer = fleet.Ask(Fleet::Request(Prompt(50 + 40 * client), 12), absl::Seconds(60),
                                        [cancels](grpc::ClientContext& context, const v1::GenerateEvent&) {
                                          if (cancels) context.TryCancel();
                                        });
        EXPECT_TRUE(answer.status.ok() || absl::IsResourceExhausted(answer.status) ||
                    (cancels && absl::IsCancelled(answer.status)))
            << answer.status;
        if (answer.status.ok()) {
          EXPECT_EQ(answer.tokens.size(), 12);
          ++answered;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(answered, 0);
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

TEST_F(Faults, SigtermLetsARunningRequestEndAndExitsWithZero) {
  Fleet fleet({});
  ASSERT_TRUE(fleet.Start());
  bool signaled = false;
  const Answer answer = fleet.Ask(Fleet::Request(kShort, 100), absl::Seconds(60),
                                  [&](grpc::ClientContext&, const v1::GenerateEvent&) {
                                    if (!signaled) fleet.decode().Signal(SIGTERM);
                                    signaled = true;
                                  });
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens.size(), 100);
  EXPECT_EQ(fleet.decode().WaitExit(), 0);
  fleet.prefill().Signal(SIGINT);
  EXPECT_EQ(fleet.prefill().WaitExit(), 0);
}

}  // namespace
}  // namespace aludel
