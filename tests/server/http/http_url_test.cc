#include "server/http/http_url.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(HttpUrl, HasDefaultsOfItsScheme) {
  const HttpUrl plain = ParseHttpUrl("http://collector").value();
  EXPECT_FALSE(plain.tls);
  EXPECT_EQ(plain.host, "collector");
  EXPECT_EQ(plain.port, 80);
  EXPECT_EQ(plain.target, "/");
  EXPECT_EQ(plain.Authority(), "collector");
  const HttpUrl secure = ParseHttpUrl("HTTPS://a-b_c.example:8443/v1/traces?x=1&y=%20").value();
  EXPECT_TRUE(secure.tls);
  EXPECT_EQ(secure.port, 8443);
  EXPECT_EQ(secure.target, "/v1/traces?x=1&y=%20");
  EXPECT_EQ(secure.Authority(), "a-b_c.example:8443");
  EXPECT_EQ(ParseHttpUrl("https://a:443/").value().Authority(), "a");
  EXPECT_EQ(ParseHttpUrl("https://a").value().port, 443);
  EXPECT_EQ(ParseHttpUrl("http://a?b=/c").value().target, "/?b=/c");
}

TEST(HttpUrl, TakesAddresses) {
  EXPECT_EQ(ParseHttpUrl("http://127.0.0.1:4318/v1").value().host, "127.0.0.1");
  const HttpUrl six = ParseHttpUrl("http://[::1]:4318/v1").value();
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.port, 4318);
  EXPECT_EQ(six.Authority(), "[::1]:4318");
  EXPECT_EQ(ParseHttpUrl("http://[2001:db8::7]").value().Authority(), "[2001:db8::7]");
}

TEST(HttpUrl, SaysWhatIsWrong) {
  const auto error = [](absl::string_view text) {
    return std::string(ParseHttpUrl(text).status().message());
  };
  EXPECT_EQ(error("collector:4318"), "\"collector:4318\": begins with neither http:// nor https://");
  EXPECT_THAT(error(""), HasSubstr("begins with neither"));
  EXPECT_THAT(error("ftp://a"), HasSubstr("begins with neither"));
  for (const char* url :
       {"http://", "http:///path", "http://:80", "http://a,b", "http://::1/", "http://a%41"}) {
    EXPECT_FALSE(ParseHttpUrl(url).ok()) << url;
  }
  EXPECT_THAT(error("http://"), HasSubstr("no name or address"));
  EXPECT_THAT(error("http://[::1/"), HasSubstr("without \"]\""));
  EXPECT_THAT(error("http://[a]/"), HasSubstr("no IPv6 address"));
  EXPECT_THAT(error("http://[fe80::1%25eth0]/"), HasSubstr("no IPv6 address"));
  for (const char* port : {"", "0", "65536", "99999999999", "+1", "-1", "8x", "80:80"}) {
    EXPECT_THAT(error(std::string("http://a:") + port), HasSubstr("port")) << port;
  }
  EXPECT_THAT(error("http://[::1]80/"), HasSubstr("port"));
  EXPECT_THAT(error("http://me:secret@a/"), HasSubstr("user name"));
  EXPECT_THAT(error("http://a/b#c"), HasSubstr("fragment"));
  EXPECT_THAT(error("http://a/b c"), HasSubstr("percent-encoded"));
  EXPECT_THAT(error("http://a/\r\nHost: b"), HasSubstr("percent-encoded"));
  EXPECT_THAT(error("http://\xc3\xa4/"), HasSubstr("percent-encoded"));
}

}  // namespace
}  // namespace aludel
