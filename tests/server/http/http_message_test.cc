#include "server/http/http_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace aludel {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(HttpMessage, WritesADateAsTheStandardsExampleHasIt) {
  EXPECT_EQ(HttpDate(absl::FromUnixSeconds(784111777)), "Sun, 06 Nov 1994 08:49:37 GMT");
}

TEST(HttpMessage, DatesEveryResponseAndLetsNoValueStartAHeader) {
  const std::string head = FormatResponseHead(11, 200, {{"A", "b\r\nC: d"}});
  EXPECT_THAT(head, ContainsRegex("^HTTP/1.1 200 OK\r\nDate: [A-Z][a-z][a-z], .* GMT\r\n"));
  EXPECT_THAT(head, HasSubstr("A: b  C: d\r\n\r\n"));
}

TEST(HttpMessage, FindsAParameterWhereverItStands) {
  EXPECT_EQ(QueryParameter("model=chat", "model"), "chat");
  EXPECT_EQ(QueryParameter("a=b&model=org%2Fplain&model=c", "model"), "org/plain");
  EXPECT_EQ(QueryParameter("mod%65l=a=b", "model"), "a=b");
  EXPECT_EQ(QueryParameter("prompt=a+b%2Bc%20d", "prompt"), "a b+c d");
  EXPECT_EQ(QueryParameter("model", "model"), "");
  EXPECT_EQ(QueryParameter("amodel=x&b", "model"), std::nullopt);
  EXPECT_EQ(QueryParameter("", "model"), std::nullopt);
}

}  // namespace
}  // namespace aludel
