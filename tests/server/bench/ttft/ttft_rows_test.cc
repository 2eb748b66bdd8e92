#include "server/bench/ttft/ttft_rows.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/bench/ttft/ttft_page.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TtftSample Sample(double seconds, int64_t payload_bytes = 0) {
  return {.seconds = seconds,
          .payload_bytes = payload_bytes,
          .handed_off_tokens = payload_bytes > 0 ? 100 : 0,
          .stages = {{"prefill", seconds / 4}, {"transfer", 0.0}, {"client", seconds * 3 / 4}}};
}

TtftRow Row(double link, const std::string& format, TtftState state, const std::vector<double>& seconds) {
  TtftRow row{.link = link, .tokens = 101, .format = format, .state = state};
  const int64_t bytes = state == TtftState::kLocal ? 0 : 1000;
  for (const double one : seconds) row.samples.push_back(Sample(one, bytes));
  return row;
}

std::vector<TtftRow> Rows() {
  TtftRow lacking = Row(1e9, "int8", TtftState::kWarm, {});
  lacking.reason = "not warm";
  return {Row(1e9, "local", TtftState::kLocal, {2, 1, 4}), Row(1e9, "raw", TtftState::kCold, {0.5}), lacking,
          Row(1e7, "local", TtftState::kLocal, {3}), Row(1e7, "raw", TtftState::kCold, {6})};
}

TEST(TtftRows, TheMedianIsOneOfTheSamples) {
  const std::vector<TtftSample> odd = {Sample(3), Sample(1), Sample(2)};
  EXPECT_EQ(SpreadOf(odd).median, 2);
  EXPECT_EQ(SpreadOf(odd).least, 1);
  EXPECT_EQ(SpreadOf(odd).most, 3);
  EXPECT_EQ(MedianSample(odd).stages[0].second, 0.5);
  const std::vector<TtftSample> even = {Sample(3), Sample(1), Sample(2), Sample(9)};
  EXPECT_EQ(SpreadOf(even).median, 2);
  EXPECT_EQ(MedianSample(even).seconds, 2);
}

TEST(TtftRows, SpeedupIsOverLocalPrefillOfTheSameLinkAndLength) {
  std::vector<TtftRow> rows = Rows();
  EXPECT_EQ(SpeedupOf(rows[1], rows), 4);
  EXPECT_EQ(SpeedupOf(rows[4], rows), 0.5);
  EXPECT_EQ(SpeedupOf(rows[2], rows), 0);  // no samples
  EXPECT_EQ(SpeedupOf(Row(1e8, "raw", TtftState::kCold, {1}), rows), 0);
  // Other servers' local prefill was measured at another time.
  TtftRow other = rows[1];
  other.artifact = "codec";
  EXPECT_EQ(SpeedupOf(other, rows), 0);
  EXPECT_EQ(FormatName(other), "raw@codec");
  rows.push_back(Row(1e9, "local", TtftState::kLocal, {8}));
  rows.back().artifact = "codec";
  EXPECT_EQ(SpeedupOf(other, rows), 16);
}

TEST(TtftRows, ThePlannerIsComparedWithTheBestThatItCouldChoose) {
  std::vector<TtftRow> rows = Rows();
  rows.push_back(Row(1e9, "raw", TtftState::kWarm, {0.1}));  // not what a cold prompt could have
  TtftRow planner = Row(1e9, "planner", TtftState::kCold, {0.6, 0.6, 2});
  planner.samples[0].choice = planner.samples[1].choice = "raw";
  planner.samples[2].choice = "local";
  rows.push_back(planner);
  EXPECT_DOUBLE_EQ(PlannerOfBest(planner, rows), 1.2);
  EXPECT_EQ(PlannerOfBest(Row(1e7, "planner", TtftState::kCold, {}), rows), 0);
  EXPECT_THAT(TtftTable(rows),
              HasSubstr("1 Gb/s, 101 tokens: the planner took 1.20x of the best option's time and chose "
                        "local 1, raw 2\n"));
  EXPECT_EQ(TtftJson(rows).back()["choices"]["raw"], 2);
  EXPECT_EQ(TtftJson(rows).back()["of_best"], 1.2);
}

TEST(TtftRows, LinksHaveNames) {
  EXPECT_EQ(LinkName(0), "no cap");
  EXPECT_EQ(LinkName(5e5), "500 kb/s");
  EXPECT_EQ(LinkName(1e7), "10 Mb/s");
  EXPECT_EQ(LinkName(2.5e9), "2.5 Gb/s");
}

TEST(TtftRows, TheTableHasALineForEachRowAndSaysWhatLacks) {
  const std::string table = TtftTable(Rows());
  const std::vector<std::string> lines = absl::StrSplit(table, '\n');
  EXPECT_EQ(
      std::vector<std::string>(absl::StrSplit(lines[0], ' ', absl::SkipEmpty())),
      std::vector<std::string>({"link", "tokens", "format", "state", "bytes/token", "ms", "least", "most",
                                "speedup", "prefill", "client"}));  // no stage that took no time
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines[2], ' ', absl::SkipEmpty())),
            std::vector<std::string>({"1", "Gb/s", "101", "raw", "cold", "10.0", "500.0", "500.0", "500.0",
                                      "4.00x", "125.0", "375.0"}));
  EXPECT_THAT(table, HasSubstr("\n1 Gb/s, 101, int8, warm: not warm\n"));
}

TEST(TtftRows, JsonHoldsEverySampleAndReasons) {
  const auto json = TtftJson(Rows());
  ASSERT_EQ(json.size(), 5u);
  EXPECT_EQ(json[0]["state"], "local");
  EXPECT_EQ(json[0]["seconds"]["median"], 2);
  EXPECT_EQ(json[0]["seconds"]["all"].get<std::vector<double>>(), std::vector<double>({2, 1, 4}));
  EXPECT_EQ(json[1]["link_bits_per_second"], 1e9);
  EXPECT_EQ(json[1]["speedup"], 4);
  EXPECT_EQ(json[1]["bytes_per_token"], 10);
  EXPECT_EQ(json[1]["recomputed_tokens"], 1);
  double stages = 0;
  for (const auto& [name, seconds] : json[1]["stages"].items()) stages += seconds.get<double>();
  EXPECT_DOUBLE_EQ(stages, json[1]["seconds"]["median"].get<double>());
  EXPECT_EQ(json[2]["samples"], 0);
  EXPECT_EQ(json[2]["reason"], "not warm");
  EXPECT_FALSE(json[2].contains("seconds"));
  EXPECT_TRUE(TtftJson({Row(0, "local", TtftState::kLocal, {1})})[0]["link_bits_per_second"].is_null());
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(TtftPage, DrawsAgainstLengthForEachLinkAndAgainstRateForEachLength) {
  std::vector<TtftRow> rows = Rows();
  for (TtftRow row : Rows()) {
    row.tokens = 202;
    rows.push_back(row);
  }
  const std::string html = TtftHtml(rows, "<base> to chat");
  EXPECT_THAT(html, HasSubstr("&lt;base&gt; to chat"));
  EXPECT_EQ(Count(html, "<figure>"), 4u);
  EXPECT_EQ(Count(html, "<g class=\"series\""), 8u);  // local and raw in each plot; int8 has no samples
  EXPECT_EQ(Count(html, "class=\"key\""), 3u);
  EXPECT_THAT(html, HasSubstr(">10 Mb/s</text>"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf,")));
}

TEST(TtftPage, HasNothingToDrawWhereNothingWasMeasured) {
  TtftRow row = Row(0, "local", TtftState::kLocal, {});
  row.reason = "stopped";
  EXPECT_THAT(TtftHtml({row}, "none"), Not(HasSubstr("nan")));
  EXPECT_THAT(TtftHtml({}, "none"), HasSubstr("</html>"));
}

}  // namespace
}  // namespace aludel
