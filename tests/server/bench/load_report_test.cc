#include "server/bench/load_report.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// `count` answers, the i-th with a TTFT of i milliseconds, ten milliseconds between its tokens, one a second.
std::vector<LoadResult> Answers(int count) {
  std::vector<LoadResult> results;
  for (int i = 1; i <= count; ++i) {
    LoadResult result{.arrival = i - 1.0, .status = 200, .ttft = i * 1e-3, .e2e = i * 1e-3 + 0.02};
    result.inter_token = {0.01, 0.01};
    result.asked_tokens = 4;
    result.prompt_tokens = 10 * i;
    result.completion_tokens = 3;
    results.push_back(result);
  }
  return results;
}

TEST(LoadReport, GivesPercentilesOfWholeAnswersAndGoodputOfAllThatWereSent) {
  std::vector<LoadResult> results = Answers(100);
  results.push_back({.arrival = 50, .status = 503, .error = "HTTP 503: busy", .e2e = 0.001});
  const auto summary = SummarizeLoad(results, {.ttft_ms = 40, .inter_token_ms = 10, .e2e_ms = 0});
  EXPECT_EQ(summary["requests"], 101);
  EXPECT_EQ(summary["completed"], 100);
  EXPECT_EQ(summary["ttft_ms"]["p50"], 50);
  EXPECT_EQ(summary["ttft_ms"]["p99"], 99);
  EXPECT_EQ(summary["ttft_ms"]["max"], 100);
  EXPECT_EQ(summary["inter_token_ms"]["count"], 200);
  EXPECT_EQ(summary["good"], 40);
  EXPECT_DOUBLE_EQ(summary["goodput_per_second"], 0.404);  // 40 in 99.12 s
  EXPECT_DOUBLE_EQ(summary["tokens_per_second"], 3.027);
  EXPECT_EQ(summary["errors"]["HTTP 503: busy"], 1);
  EXPECT_THAT(DescribeLoad(summary), HasSubstr("100 of 101 requests answered"));
  EXPECT_THAT(DescribeLoad(summary), HasSubstr("505.0 prompt tokens and 3.0 of at most 4.0 answer tokens"));
}

TEST(LoadReport, SaysWhereTokensCameTogether) {
  std::vector<LoadResult> results = Answers(3);
  EXPECT_THAT(DescribeLoad(SummarizeLoad(results, {})), Not(HasSubstr("share the time")));
  results[0].coalesced = 2;
  results[2].coalesced = 3;
  const auto summary = SummarizeLoad(results, {});
  EXPECT_EQ(summary["coalesced_pieces"], 5);
  EXPECT_THAT(DescribeLoad(summary),
              HasSubstr("5 pieces of text came together with others; those of one read"));
  EXPECT_THAT(LoadHtml(summary, results, "coalesced"), HasSubstr("share the time since the read before it"));
}

TEST(LoadReport, ErrorsThatDifferInFiguresAreOneKindAndStatusesAreNot) {
  const auto errors = SummarizeLoad({{.error = "HTTP 429: expected in 1.8 s"},
                                     {.error = "HTTP 429: expected in 12.25 s"},
                                     {.error = "HTTP 503: busy"}},
                                    {})["errors"];
  EXPECT_EQ(errors["HTTP 429: expected in #.# s"], 2);
  EXPECT_EQ(errors["HTTP 503: busy"], 1);
}

TEST(LoadReport, CountsErrorsOfAnyNumberOfKinds) {
  std::vector<LoadResult> results;
  for (int i = 0; i < 1000; ++i) results.push_back({.error = std::string(1 + i, 'x')});
  const auto errors = SummarizeLoad(results, {})["errors"];
  EXPECT_LE(errors.size(), 21u);
  int64_t sum = 0;
  for (const auto& [what, count] : errors.items()) sum += count.get<int64_t>();
  EXPECT_EQ(sum, 1000);
}

TEST(LoadReport, DrawsOneCurvePerLatency) {
  const std::vector<LoadResult> results = Answers(5);
  const std::string html = LoadHtml(SummarizeLoad(results, {}), results, "<chat> under load");
  EXPECT_THAT(html, HasSubstr("&lt;chat&gt; under load"));
  for (const char* curve : {"\" class=\"ttft\"", "\" class=\"itl\"", "\" class=\"e2e\""}) {
    EXPECT_THAT(html, HasSubstr(curve));
  }
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf")));
}

TEST(LoadReport, HasNothingToDrawWhereNothingWasAnswered) {
  const std::vector<LoadResult> results = {{.error = "refused"}};
  const auto summary = SummarizeLoad(results, {});
  EXPECT_EQ(summary["completed"], 0);
  EXPECT_THAT(LoadHtml(summary, results, "none"), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace aludel
