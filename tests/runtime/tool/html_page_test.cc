#include "runtime/tool/html_page.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tool/html_policy.h"

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
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http:")), Not(HasSubstr("https:")), Not(HasSubstr("src=")),
                          Not(HasSubstr("url("))));
}

TEST(HtmlPage, AllowsWhatItIsMadeWith) {
  const std::string html =
      RenderPage({.title = "t", .width = "1px", .body = "<script>alert('Hello, world.');</script>"});
  EXPECT_THAT(html,
              HasSubstr("script-src 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='; style-src '"));
  EXPECT_THAT(html, Not(HasSubstr("unsafe-inline")));
  const size_t policy = html.find("Content-Security-Policy");
  EXPECT_LT(policy, html.find("<style>"));
  EXPECT_THAT(html, HasSubstr("style-src " + InlineSources(html, "style") + ";"));
  EXPECT_THAT(RenderPage({.title = "t", .width = "1px"}), HasSubstr("script-src 'none'; style-src 'sha256-"));
}

TEST(HtmlPolicy, NamesEveryInlineElement) {
  EXPECT_EQ(InlineSources("<p>no</p>", "script"), "'none'");
  // As `printf %s TEXT | openssl dgst -sha256 -binary | base64` says.
  EXPECT_EQ(InlineSources("<style>a</style><script>b</script><style></style>", "style"),
            "'sha256-ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs=' "
            "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
}

}  // namespace
}  // namespace aludel
