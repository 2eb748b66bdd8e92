#include "runtime/evaluate/report/pareto_plot.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/evaluate/evaluate.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ParetoPlot Plot(std::vector<PlotPoint> points, bool higher_is_better = true) {
  ParetoPlot plot{.title = "t", .value_name = "v", .higher_is_better = higher_is_better};
  plot.points = std::move(points);
  return plot;
}

TEST(ParetoFront, LeavesOutWhatAnotherPointBeats) {
  // The second costs more than the third and gives less; the last repeats the first.
  const std::vector<PlotPoint> points = {
      {"a", 10, .5, {}}, {"b", 40, .6, {}}, {"c", 20, .7, {}}, {"d", 80, .9, {}}, {"e", 10, .5, {}}};
  EXPECT_THAT(ParetoFront(Plot(points)), ElementsAre(0, 2, 3));
  EXPECT_THAT(ParetoFront(Plot(points, /*higher_is_better=*/false)), ElementsAre(0));
  EXPECT_TRUE(ParetoFront(Plot({})).empty());
}

TEST(ParetoSvg, DrawsZerosBesideLogarithmicAxes) {
  ParetoPlot plot = Plot({{"control-p0", 0, 1.5, {1, 2}}, {"exact", 4096, 0, {0, 0}}}, false);
  plot.log_value = true;
  const std::string svg = ParetoSvg(plot);
  EXPECT_THAT(svg, AllOf(HasSubstr(">control-p0</text>"), HasSubstr(">0</text>"), Not(HasSubstr("nan")),
                         Not(HasSubstr("inf"))));
}

TEST(ParetoSvg, DrawsEvenWithoutAnythingPositive) {
  ParetoPlot plot = Plot({{"control-p0", 0, 0, {0, 0}}}, false);
  EXPECT_THAT(ParetoSvg(plot), Not(HasSubstr("nan")));
  plot.log_value = true;
  EXPECT_THAT(ParetoSvg(plot), Not(HasSubstr("nan")));
}

TEST(ReportHtml, IsSelfContainedAndEscapesNames) {
  EvaluateReport report;
  report.producer = "base<script>";
  report.consumer = "chat";
  FormatResult format;
  format.name = "a\"&b";
  format.bytes_per_token = 100;
  format.bytes_vs_raw = .025;
  format.f1 = .5;
  format.f1_ci95 = {.4, .6};
  format.kl = .1;
  format.kl_ci95 = {.05, .2};
  report.formats.push_back(format);
  report.examples.push_back(
      {.number = 1, .prompt = "</script><b>", .oracle = "<i>", .formats = {{.text = "cut \xc3"}}});
  report.command = "aludel-eval --qa '<b>'";
  const std::string html = ReportHtml(report);
  EXPECT_THAT(html, AllOf(HasSubstr("base&lt;script&gt; \u2192 chat"), HasSubstr("a&quot;&amp;b"),
                          HasSubstr("40.0x"), HasSubstr("0.500 <small>[0.400, 0.600]</small>")));
  // What models wrote is data for the script, which cannot end its element, and what is no text becomes some.
  EXPECT_THAT(html,
              AllOf(HasSubstr(R"("prompt": "\u003c/script>\u003cb>")"), HasSubstr("cut \xef\xbf\xbd"),
                    Not(HasSubstr("<i>")), Not(HasSubstr("<b>")), HasSubstr("aludel-eval --qa '&lt;b&gt;'")));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("base<script")), Not(HasSubstr("http:")), Not(HasSubstr("https:")),
                          Not(HasSubstr("src="))));
}

}  // namespace
}  // namespace aludel
