// A prefill server whose store has room for some of what is asked for: chunks of an embedded code are cut, and what is
// sent of them is what an encoder of the cut format sends.

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr size_t kPrompts = 10;
constexpr char kHit[] = "aludel_store_lookups_total{result=\"hit\"}";
constexpr char kCuts[] = "aludel_store_cuts_total";
constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";

Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& format) {
  const Answer answer = fleet.Ask(Fleet::Request(prompt, 8, format));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  return answer;
}

TEST(StoreCuts, AFullStoreCutsAndStillAnswersAsTheFormatThatWasAskedFor) {
  const std::string artifact = EmbeddedDemoCodec("store_cuts_codec");
  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec = absl::StrCat("artifact: '", artifact, "' formats: ['aludel-p0', 'aludel-p0@1']");
  options.prefill = "store { memory_bytes: 0 }";
  const auto prompts = DemoPrompts(kPrompts);
  std::vector<Answer> whole, cut;
  uint64_t bytes = 0;
  {
    Fleet fleet(options);
    ASSERT_TRUE(fleet.Start());
    for (const auto& prompt : prompts) {
      whole.push_back(Ask(fleet, prompt, "aludel-p0"));
      cut.push_back(Ask(fleet, prompt, "aludel-p0@1"));
      bytes += whole.back().started.payload_bytes();
      EXPECT_LT(cut.back().started.payload_bytes(), whole.back().started.payload_bytes() / 2);
    }
  }
  const auto check = [&](Fleet& fleet, size_t i, bool whole_one) {
    const Answer answer = Ask(fleet, prompts[i], whole_one ? "aludel-p0" : "aludel-p0@1");
    const Answer& fresh = whole_one ? whole[i] : cut[i];
    EXPECT_EQ(answer.tokens, fresh.tokens) << i;
    EXPECT_EQ(answer.started.payload_bytes(), fresh.started.payload_bytes()) << i;
  };
  // Room for half of them whole.
  options.prefill = absl::StrCat("store { memory_bytes: ", bytes / 2, " }");
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  for (size_t i = 0; i < kPrompts; ++i) {
    check(fleet, i, true);
    for (int again = 0; again < 3; ++again) check(fleet, i, false);
  }
  EXPECT_EQ(fleet.prefill().Metric(kHit), 3 * kPrompts) << "whole chunks serve the cut format";
  EXPECT_GT(fleet.prefill().Metric(kCuts), 0);
  const double computed = fleet.prefill().Metric(kComputed);
  for (size_t i = 0; i < kPrompts; ++i) check(fleet, i, false);
  EXPECT_EQ(fleet.prefill().Metric(kHit), 4 * kPrompts);
  EXPECT_EQ(fleet.prefill().Metric(kComputed), computed);
  // What was cut is computed for the whole format.
  for (size_t i = 0; i < kPrompts; ++i) check(fleet, i, true);
  EXPECT_GT(fleet.prefill().Metric(kComputed), computed);
  std::filesystem::remove_all(artifact);
}

// What a decode server behind a narrow link has received: a cut of a format that it does not offer whole.
TEST(StoreCuts, ADecodeServerHasThemAfterARestart) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/kept-cuts-", getpid());
  std::filesystem::remove_all(directory);
  constexpr char kCut[] = "aludel-p0@1";
  constexpr char kDisk[] = "aludel_store_entries{tier=\"disk\"}";
  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec =
      absl::StrCat("artifact: '", EmbeddedDemoCodec("kept_cuts_codec"), "' formats: '", kCut, "'");
  options.decode = absl::StrCat("store { disk { path: '", directory, "' bytes: 67108864 } }");
  const auto prompt = DemoPrompts(1)[0];
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const Answer fresh = Ask(fleet, prompt, kCut);
  const double entries = fleet.prefill().Metric("aludel_store_entries{tier=\"memory\"}");
  ASSERT_GT(entries, 0);
  ASSERT_TRUE(fleet.decode().WaitMetric(kDisk, entries));
  fleet.decode().Signal(SIGTERM);
  ASSERT_NE(fleet.decode().WaitExit(), -1);
  ASSERT_TRUE(fleet.StartDecode());
  EXPECT_EQ(fleet.decode().Metric(kDisk), entries);
  const Answer again = fleet.Ask(Fleet::Request(prompt, 8, kCut));
  EXPECT_EQ(again.started.plan(), "stored") << again.started.fallback_reason();
  EXPECT_EQ(again.tokens, fresh.tokens);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace aludel
