// Answers that begin over the first plane of their cache, while the others come behind it.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"
#include "tests/testing/certificates.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kWhole[] = "aludel-p0";
constexpr char kCut[] = "aludel-p0@1";
constexpr char kTwoParts[] = "aludel-p0@1+";
constexpr char kTokensBefore[] = "aludel_tokens_before_upgrade_sum";
constexpr char kReceivedBytes[] =
    "aludel_handoff_bytes_total{direction=\"received\",format=\"aludel-p0@1+\"}";

std::string Outcome(const std::string& outcome) {
  return absl::StrCat("aludel_cache_upgrades_total{outcome=\"", outcome, "\"}");
}

// The parameter: UCX transports, "" for TCP.
class TwoPartHandoff : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { artifact_ = EmbeddedDemoCodec("two_part_codec", /*planes=*/5); }
  static void TearDownTestSuite() { std::filesystem::remove_all(artifact_); }

  static FleetOptions Options() {
    FleetOptions options;
    options.decode_model = "deploy/demo/chat";
    options.codec = absl::StrCat("artifact: '", artifact_, "' formats: ['", kTwoParts, "', '", kWhole, "', '",
                                 kCut, "']");
    options.ucx_transports = GetParam();
    return options;
  }
  void Start(const FleetOptions& options) {
    fleet_ = std::make_unique<Fleet>(options);
    ASSERT_TRUE(fleet_->Start());
  }
  Answer Ask(const std::vector<int32_t>& prompt, const std::string& plan, const std::string& format,
             uint32_t tokens = 24) {
    Answer answer = fleet_->Ask(Fleet::Request(prompt, tokens, format));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), plan) << answer.started.fallback_reason();
    EXPECT_EQ(answer.started.format(), format);
    EXPECT_EQ(answer.tokens.size(), tokens);
    return answer;
  }
  double Upgrades(const std::string& outcome) { return fleet_->decode().Metric(Outcome(outcome)); }
  void ExpectIdle() {
    EXPECT_TRUE(fleet_->DecodeIsIdle());
    EXPECT_TRUE(fleet_->PrefillIsIdle());
  }

  static inline std::string artifact_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_P(TwoPartHandoff, LeavesTheBlocksOfWholeFramesForOthers) {
  FleetOptions options = Options();
  options.prefix_cache = true;
  Start(options);
  const auto prompts = DemoPrompts(3);
  double upgrades = 0;
  for (const auto& prompt : prompts) {
    const Answer whole = Ask(prompt, "remote", kWhole);
    // The same prompt again, over what that left in the prefix cache; the rest is computed here.
    const Answer want = Ask(prompt, "cached", kWhole);
    const double bytes = fleet_->decode().Metric(kReceivedBytes);
    const Answer cut = Ask(prompt, "remote", kCut);
    // An answer long enough for all that still comes: without a cap on the link that is a few steps.
    const Answer first = Ask(prompt, "remote", kTwoParts, 200);
    EXPECT_EQ(first.started.payload_bytes(), cut.started.payload_bytes()) << "what the first token waits for";
    EXPECT_LT(first.started.payload_bytes(), whole.started.payload_bytes() / 4);
    ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("complete"), ++upgrades));
    // All bytes of the whole frames have come, and no more than another header for each.
    const double came = fleet_->decode().Metric(kReceivedBytes) - std::max(bytes, 0.0);
    EXPECT_GT(came, whole.started.payload_bytes());
    EXPECT_LT(came, 1.1 * static_cast<double>(whole.started.payload_bytes()));
    const Answer again = Ask(prompt, "cached", kTwoParts);
    EXPECT_EQ(again.tokens, want.tokens);
    EXPECT_EQ(again.started.cached_tokens(), want.started.cached_tokens());
  }
  EXPECT_EQ(fleet_->decode().Metric("aludel_tokens_before_upgrade_count"), upgrades);
  EXPECT_EQ(Upgrades("failed") + Upgrades("late") + Upgrades("ended"), 0);
  ExpectIdle();
}

TEST_P(TwoPartHandoff, OverASlowLinkTokensComeBeforeTheOtherPlanes) {
  FleetOptions options = Options();
  options.bytes_per_second = 300000;
  Start(options);
  const auto prompt = DemoPrompts(1)[0];
  const Answer cut = Ask(prompt, "remote", kCut);
  const Answer answer = Ask(prompt, "remote", kTwoParts, 500);
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("complete"), 1));
  EXPECT_GT(fleet_->decode().Metric(kTokensBefore), 0);
  EXPECT_EQ(answer.tokens[0], cut.tokens[0]) << "it begins over the first plane";
  ExpectIdle();
}

// Of many small frames, which the windows on both sides hold a part of, under credit; encrypted where they travel over UCX.
TEST_P(TwoPartHandoff, ThroughSmallWindows) {
  Certificates certificates(absl::StrCat("two_part_handoff_test_", getpid()));
  certificates.MakeAuthority("ca");
  certificates.MakeCertificate("server", "ca");
  const auto file = [&](const char* name) { return ReadFile(certificates.Path(name)); };
  FleetOptions options = Options();
  options.engine = "max_num_batched_tokens: 32";
  options.both = absl::StrCat(certificates.Settings("server"), "handoff_window_bytes: 4096\n");
  options.credentials = grpc::SslCredentials({.pem_root_certs = file("ca.crt"),
                                              .pem_private_key = file("server.key"),
                                              .pem_cert_chain = file("server.crt")});
  if (*GetParam() != '\0') options.decode = "encrypt_frames: true\n";
  options.prefix_cache = true;
  Start(options);
  const auto prompts = DemoPrompts(2);
  std::vector<int32_t> prompt = prompts[0];
  prompt.insert(prompt.end(), prompts[1].begin(), prompts[1].end());
  Ask(prompt, "remote", kWhole);
  const Answer want = Ask(prompt, "cached", kWhole);
  Ask(prompt, "remote", kTwoParts, 300);
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("complete"), 1));
  EXPECT_EQ(Ask(prompt, "cached", kTwoParts).tokens, want.tokens);
  ExpectIdle();
}

// From the store a prompt's whole frames come in two parts, too, and nothing is computed for them.
TEST_P(TwoPartHandoff, StoredFramesAreSplit) {
  Start(Options());
  const auto prompt = DemoPrompts(1)[0];
  Ask(prompt, "remote", kWhole);
  const Answer answer = Ask(prompt, "remote", kTwoParts, 200);
  EXPECT_EQ(answer.finished.stored_tokens(), prompt.size() - 1);
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("complete"), 1));
  // And the other way round: what was sent in two parts is stored whole.
  const auto other = DemoPrompts(2)[1];
  Ask(other, "remote", kTwoParts, 200);
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("complete"), 2));
  EXPECT_EQ(Ask(other, "remote", kWhole).finished.stored_tokens(), other.size() - 1);
  v1::GenerateRequest secret = Fleet::Request(DemoPrompts(3)[2], 200, kTwoParts);
  secret.set_no_store(true);
  EXPECT_TRUE(fleet_->Ask(secret).status.ok());
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("complete"), 3)) << "it needs no store";
  ExpectIdle();
}

// The link is so slow that the other planes take seconds, and the server dies meanwhile.
TEST_P(TwoPartHandoff, AServerThatDiesBehindTheFirstPlaneCostsTheOthersAlone) {
  FleetOptions options = Options();
  options.bytes_per_second = 15000;
  options.prefix_cache = true;
  Start(options);
  const auto prompt = DemoPrompts(1)[0];
  bool killed = false;
  const Answer answer = fleet_->Ask(Fleet::Request(prompt, 500, kTwoParts), absl::Seconds(60),
                                    [&](grpc::ClientContext&, const v1::GenerateEvent& event) {
                                      if (!event.has_token() || std::exchange(killed, true)) return;
                                      fleet_->prefill().Signal(SIGKILL);
                                    });
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote");
  EXPECT_EQ(answer.tokens.size(), 500);
  EXPECT_EQ(Upgrades("failed"), 1);
  EXPECT_EQ(Upgrades("complete") + Upgrades("late") + Upgrades("ended"), 0);
  EXPECT_TRUE(fleet_->DecodeIsIdle());
  // Nothing of it is in the prefix cache: without a prefill server the prompt is computed here.
  ASSERT_NE(fleet_->prefill().WaitExit(), -1);
  ASSERT_TRUE(fleet_->WaitPrefillState("down"));
  EXPECT_EQ(fleet_->Ask(Fleet::Request(prompt, 4, kTwoParts)).started.plan(), "local");
}

TEST_P(TwoPartHandoff, TheEndOfTheAnswerOrOfItsClientEndsThem) {
  FleetOptions options = Options();
  options.bytes_per_second = 15000;
  Start(options);
  const auto prompts = DemoPrompts(3);
  Ask(prompts[0], "remote", kTwoParts, 2);
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("ended"), 1));
  ExpectIdle();
  const Answer cancelled = fleet_->Ask(Fleet::Request(prompts[1], 500, kTwoParts), absl::Seconds(60),
                                       [](grpc::ClientContext& context, const v1::GenerateEvent& event) {
                                         if (event.has_token()) context.TryCancel();
                                       });
  EXPECT_EQ(cancelled.status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(fleet_->decode().WaitMetric(Outcome("ended"), 2));
  ExpectIdle();
  EXPECT_EQ(Upgrades("complete") + Upgrades("late") + Upgrades("failed"), 0);
  // And both are well.
  Ask(prompts[2], "remote", kCut);
}

// The handoff's own time bounds them: the answer goes on without.
TEST_P(TwoPartHandoff, LateOnesAreNotWaitedFor) {
  FleetOptions options = Options();
  options.bytes_per_second = 20000;
  options.handoff_timeout_ms = 1500;
  Start(options);
  const Answer answer = Ask(DemoPrompts(1)[0], "remote", kTwoParts, 500);
  EXPECT_EQ(Upgrades("late") + Upgrades("ended"), 1) << "the answer was over first, or not";
  EXPECT_EQ(Upgrades("complete") + Upgrades("failed"), 0);
  ExpectIdle();
}

TEST_P(TwoPartHandoff, IsForOneAnswer) {
  Start(Options());
  v1::GenerateRequest request = Fleet::Request(DemoPrompts(1)[0], 4, kTwoParts);
  request.mutable_sampling()->set_choices(2);
  const Answer refused = fleet_->Ask(request);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(refused.status.message()),
      HasSubstr("format: found \"aludel-p0@1+\", which is refined while one answer goes on, and 2 choices"));
  request.clear_format();
  const Answer other = fleet_->Ask(request);
  EXPECT_TRUE(other.status.ok()) << other.status;
  EXPECT_EQ(other.started.format(), kWhole) << "the next of the server's formats";
  request.mutable_sampling()->set_choices(1);
  EXPECT_EQ(fleet_->Ask(request).started.format(), kTwoParts);
}

INSTANTIATE_TEST_SUITE_P(Links, TwoPartHandoff, ::testing::Values("", "tcp"),
                         [](const auto& info) { return *info.param == '\0' ? "Tcp" : "Ucx"; });

}  // namespace
}  // namespace aludel
