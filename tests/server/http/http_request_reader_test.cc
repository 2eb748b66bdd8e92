#include "server/http/http_request_reader.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr HttpLimits kLimits = {.max_header_bytes = 1024, .max_body_bytes = 4096};
constexpr char kPost[] = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";

TEST(HttpRequestReader, CutsBytesIntoRequests) {
  HttpBodyBudget budget(100);
  HttpRequestReader reader(&kLimits, &budget);
  reader.Start("1.2.3.4:5");
  EXPECT_FALSE(reader.Begin());
  reader.Add("\r\n");
  EXPECT_FALSE(reader.Begin()) << "a line break is of no request";
  reader.Add(std::string(kPost) + "GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(reader.Begin());
  EXPECT_EQ(reader.Go(), HttpParser::State::kHeaderDone);
  EXPECT_EQ(reader.Head().path, "/a");
  EXPECT_EQ(reader.Head().peer, "1.2.3.4:5");
  EXPECT_EQ(reader.Go(), HttpParser::State::kDone);
  HttpRequest first = reader.Take(nullptr);
  EXPECT_EQ(first.body, "hello");
  EXPECT_EQ(first.peer, "1.2.3.4:5");
  EXPECT_EQ(budget.used_bytes(), 5u) << "as long as the body is there";
  first = HttpRequest();
  EXPECT_EQ(budget.used_bytes(), 0u);
  ASSERT_TRUE(reader.Begin());
  EXPECT_EQ(reader.Go(), HttpParser::State::kDone);
  EXPECT_EQ(reader.Take(nullptr).path, "/b");
  EXPECT_FALSE(reader.Begin());
}

TEST(HttpRequestReader, TakesNoMoreThanItParses) {
  HttpBodyBudget budget(100);
  HttpRequestReader reader(&kLimits, &budget);
  const size_t room = reader.Room();
  EXPECT_GT(room, kLimits.max_header_bytes);
  reader.Add(std::string(room, 'x'));
  EXPECT_EQ(reader.Room(), 0u);
  reader.Abandon();
  EXPECT_EQ(reader.Room(), room);
}

TEST(HttpRequestReader, RefusesABodyThatTheBudgetHasNoRoomFor) {
  HttpBodyBudget budget(4);
  HttpRequestReader reader(&kLimits, &budget);
  reader.Add(kPost);
  ASSERT_TRUE(reader.Begin());
  HttpParser::State state = reader.Go();
  if (state == HttpParser::State::kHeaderDone) state = reader.Go();
  EXPECT_EQ(state, HttpParser::State::kError);
  EXPECT_EQ(reader.error().status, 503);
  reader.Abandon();
  EXPECT_EQ(budget.used_bytes(), 0u);
}

}  // namespace
}  // namespace aludel
