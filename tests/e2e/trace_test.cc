#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

struct Bar {
  std::string name;
  double begin = 0;
  double end = 0;
};

// The trace's bars, by row.
std::map<std::string, std::vector<Bar>> ReadTrace(const std::filesystem::path& file) {
  std::ifstream in(file);
  const nlohmann::json trace = nlohmann::json::parse(in);
  std::map<int, std::string> rows;
  std::map<std::string, std::vector<Bar>> bars;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") {
      rows[event.at("tid")] = event.at("args").at("name");
    } else {
      const double begin = event.at("ts");
      bars[rows.at(event.at("tid"))].push_back(
          {event.at("name"), begin, begin + event.at("dur").get<double>()});
    }
  }
  return bars;
}

TEST(Trace, ShowsThatSendingAndReconstructingOverlapComputing) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "aludel-handoffs";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  constexpr size_t kTokens = 700;
  std::vector<int32_t> prompt;
  for (const auto& one : DemoPrompts(8)) prompt.insert(prompt.end(), one.begin(), one.end());
  prompt.resize(kTokens);

  Fleet fleet({.bytes_per_second = 200e6,
               .engine = "max_num_batched_tokens: 128",
               .decode = absl::StrCat("tracing { handoff_trace_directory: '", folder.string(), "' }\n")});
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(prompt, 2));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();

  // Its run ended by itself, although all that it sent was here before it said so.
  EXPECT_TRUE(
      fleet.prefill().WaitMetric("aludel_handoff_seconds_count{direction=\"sent\",outcome=\"ok\"}", 1));
  const std::filesystem::path file = folder / "handoff-000.json";
  for (int i = 0; i < 100 && !std::filesystem::exists(file); ++i) absl::SleepFor(absl::Milliseconds(50));
  auto rows = ReadTrace(file);
  const size_t frames = 8 * ((kTokens - 1 + 127) / 128);
  const auto& computed = rows["compute (prefill server)"];
  const auto& sent = rows["link"];
  const auto& reconstructed = rows["reconstruct (decode server)"];
  ASSERT_EQ(computed.size(), frames);
  ASSERT_EQ(sent.size(), frames);
  ASSERT_EQ(reconstructed.size(), frames);
  for (size_t i = 0; i < frames; ++i) {
    EXPECT_EQ(computed[i].name, sent[i].name);
    EXPECT_LE(sent[i].end, reconstructed[i].end);
  }
  // Before the last layer was computed frames had arrived and were reconstructed: most on a machine that is
  // not busy, none without overlap.
  const double end = computed.back().end;
  const auto done = [&](const std::vector<Bar>& row) {
    return std::count_if(row.begin(), row.end(), [&](const Bar& bar) { return bar.end < end; });
  };
  EXPECT_GT(done(sent), frames / 8);
  EXPECT_GT(done(reconstructed), frames / 8);
  ASSERT_EQ(rows["own tokens, first step (decode server)"].size(), 1);
  EXPECT_GE(rows["own tokens, first step (decode server)"][0].begin, reconstructed.back().end - 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace aludel
