#include "runtime/tool/html_page.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(HtmlPage, EscapesItsTitleAndKeepsTheRest) {
  const std::string html = RenderPage(
      {.title = "<a> & \"b\"", .width = "46rem", .style = "p { margin: 50%; }\n", .body = "<p>100 %s</p>\n"});
  EXPECT_THAT(html, AllOf(StartsWith("<!doctype html>"), EndsWith("<p>100 %s</p>\n</body></html>\n")));
  EXPECT_THAT(html, AllOf(HasSubstr("<title>&lt;a&gt; &amp; &quot;b&quot;</title>"),
                          HasSubstr("<h1>&lt;a&gt; &amp; &quot;b&quot;</h1>")));
  EXPECT_THAT(html, AllOf(HasSubstr("max-width: 46rem;"), HasSubstr("p { margin: 50%; }\n</style>")));
}

TEST(HtmlPage, LoadsNothingFromAnywhere) {
  const std::string html = RenderPage({.title = "t", .width = "1px", .body = ""});
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http")), Not(HasSubstr("src=")), Not(HasSubstr("url("))));
}

}  // namespace
}  // namespace aludel
