#include "server/http/http_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using State = HttpParser::State;

constexpr HttpLimits kLimits = {.max_header_bytes = 1024, .max_body_bytes = 100};

// Feeds `text` in pieces of `step` bytes, as a socket would deliver them.
State FeedAll(HttpParser& parser, absl::string_view text, size_t step, std::string* rest = nullptr) {
  std::string pending;
  State state = State::kNeedMore;
  while (!text.empty() || !pending.empty()) {
    absl::string_view piece = text.substr(0, step);
    text.remove_prefix(piece.size());
    pending.append(piece.data(), piece.size());
    do {
      size_t consumed = 0;
      state = parser.Feed(pending, &consumed);
      pending.erase(0, consumed);
    } while (state == State::kHeaderDone);
    if (state != State::kNeedMore) break;
    if (text.empty()) break;
  }
  if (rest != nullptr) *rest = absl::StrCat(pending, text);
  return state;
}

HttpError ErrorOf(absl::string_view text, size_t step = 1 << 20) {
  HttpParser parser(kLimits);
  EXPECT_EQ(FeedAll(parser, text, step), State::kError) << text;
  return parser.error();
}

TEST(HttpParser, ReadsARequestHoweverItsBytesArrive) {
  const std::string text =
      "POST /v1/models?a=b HTTP/1.1\r\nHost: x\r\nX-Name: some value\r\nContent-Length: 5\r\n\r\nhello";
  for (size_t step : {1, 2, 7, 1000}) {
    HttpParser parser(kLimits);
    ASSERT_EQ(FeedAll(parser, text, step), State::kDone) << step;
    const HttpRequest request = parser.Release();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/models");
    EXPECT_EQ(request.query, "a=b");
    EXPECT_EQ(request.Header("x-NAME"), "some value");
    EXPECT_EQ(request.Header("absent"), "");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.keep_alive);
  }
}

TEST(HttpParser, ShowsTheHeadBeforeTheBodyHasCome) {
  HttpParser parser(kLimits);
  EXPECT_EQ(parser.Head().method, "");
  const std::string text =
      "POST /a?b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhel";
  size_t consumed = 0;
  ASSERT_EQ(parser.Feed(text, &consumed), State::kHeaderDone);
  const HttpRequest head = parser.Head();
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/a");
  EXPECT_EQ(head.Header("host"), "x");
  EXPECT_TRUE(parser.ExpectsContinue());
}

TEST(HttpParser, JoinsAChunkedBody) {
  const std::string text =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n";
  for (size_t step : {1, 3, 1000}) {
    HttpParser parser(kLimits);
    ASSERT_EQ(FeedAll(parser, text, step), State::kDone) << step;
    EXPECT_EQ(parser.Release().body, "abcde");
  }
}

TEST(HttpParser, LeavesTheNextRequestAlone) {
  const std::string first = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
  HttpParser parser(kLimits);
  std::string rest;
  ASSERT_EQ(FeedAll(parser, absl::StrCat(first, "GET /b"), 1000, &rest), State::kDone);
  EXPECT_EQ(rest, "GET /b");
}

TEST(HttpParser, AcceptsTheAbsoluteFormAndOldHttp) {
  HttpParser absolute(kLimits);
  ASSERT_EQ(FeedAll(absolute, "GET http://host:80/x?y HTTP/1.1\r\nHost: host\r\n\r\n", 1000), State::kDone);
  const HttpRequest request = absolute.Release();
  EXPECT_EQ(request.path, "/x");
  EXPECT_EQ(request.query, "y");
  HttpParser old(kLimits);
  ASSERT_EQ(FeedAll(old, "GET / HTTP/1.0\r\n\r\n", 1000), State::kDone);
  EXPECT_FALSE(old.Release().keep_alive);
}

TEST(HttpParser, StopsAtTheHeaderLimit) {
  const std::string text =
      absl::StrCat("GET / HTTP/1.1\r\nHost: x\r\nX: ", std::string(2000, 'a'), "\r\n\r\n");
  for (size_t step : {16, 5000}) {
    const HttpError error = ErrorOf(text, step);
    EXPECT_EQ(error.status, 431);
    EXPECT_THAT(error.message, HasSubstr("1024 bytes"));
  }
}

TEST(HttpParser, StopsAtTheBodyLimitWhetherDeclaredOrChunked) {
  EXPECT_EQ(ErrorOf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n").status, 413);
  const HttpError error =
      ErrorOf(absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n",
                           std::string(128, 'a'), "\r\n"));
  EXPECT_EQ(error.status, 413);
  EXPECT_THAT(error.message, HasSubstr("100 bytes"));
}

TEST(HttpParser, RefusesWhatIsNotHttp) {
  for (absl::string_view text : {
           "\x16\x03\x01\x02\x01 a TLS hello\r\n\r\n",
           "GET\r\n\r\n",
           "GET / HTTP/1.1 extra\r\nHost: x\r\n\r\n",
           "GET / HTTP/1.7\r\nHost: x\r\n\r\n",
           "GET / HTTQ/1.1\r\nHost: x\r\n\r\n",
           "GET / HTTP/1.1\r\nHost x\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n",
           "GET / HTTP/1.1\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
           "GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
           "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
       }) {
    EXPECT_EQ(ErrorOf(text).status, 400) << text;
  }
}

TEST(HttpParser, RefusesTwoWaysToEndABody) {
  EXPECT_EQ(
      ErrorOf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n").status,
      400);
  EXPECT_EQ(
      ErrorOf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n").status,
      400);
  EXPECT_EQ(ErrorOf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n").status, 501);
}

constexpr char kChunked[] = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string Repeat(absl::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) absl::StrAppend(&all, text);
  return all;
}

// Feeds pieces until the parser has enough, and says what it held unconsumed at most.
State FeedPieces(HttpParser& parser, const std::vector<std::string>& pieces, size_t* most_pending) {
  std::string pending;
  State state = State::kNeedMore;
  *most_pending = 0;
  for (const std::string& piece : pieces) {
    pending += piece;
    do {
      size_t consumed = 0;
      state = parser.Feed(pending, &consumed);
      pending.erase(0, consumed);
    } while (state == State::kHeaderDone);
    *most_pending = std::max(*most_pending, pending.size());
    if (state != State::kNeedMore) break;
  }
  return state;
}

TEST(HttpParser, BoundsTrailersHoweverTheyArrive) {
  const std::string one_field = absl::StrCat(kChunked, "0\r\na: ", std::string(70000, 'b'), "\r\n\r\n");
  const std::string many_fields = absl::StrCat(kChunked, "1\r\nx\r\n0\r\n", Repeat("a: b\r\n", 300), "\r\n");
  for (const std::string& text : {one_field, many_fields}) {
    for (size_t step : {7, 1000, 1 << 20}) {
      const HttpError error = ErrorOf(text, step);
      EXPECT_EQ(error.status, 431) << step;
      EXPECT_THAT(error.message, HasSubstr("trailer is longer than 1024 bytes"));
    }
  }
  std::vector<std::string> endless = {absl::StrCat(kChunked, "0\r\n")};
  endless.resize(100000, "a: b\r\n");
  HttpParser parser(kLimits);
  size_t most_pending;
  EXPECT_EQ(FeedPieces(parser, endless, &most_pending), State::kError);
  EXPECT_LE(most_pending, kLimits.max_header_bytes + 6);
}

TEST(HttpParser, TakesNoTrailerForAHeader) {
  HttpParser parser(kLimits);
  ASSERT_EQ(
      FeedAll(parser, absl::StrCat(kChunked, "1\r\nx\r\n0\r\nAuthorization: Bearer late\r\nHost: y\r\n\r\n"),
              1000),
      State::kDone);
  const HttpRequest request = parser.Release();
  EXPECT_EQ(request.body, "x");
  EXPECT_EQ(request.Header("authorization"), "");
  EXPECT_EQ(request.headers.size(), 2);
}

TEST(HttpParser, BoundsAHeaderThatIsCutJustBehindItsLines) {
  std::vector<std::string> endless = {"GET / HTTP/1.1\r\nH", "ost: x\r\na"};
  endless.resize(100000, ": b\r\na");
  HttpParser parser(kLimits);
  size_t most_pending;
  EXPECT_EQ(FeedPieces(parser, endless, &most_pending), State::kError);
  EXPECT_EQ(parser.error().status, 431);
  EXPECT_LE(parser.Head().headers.size(), HttpParser::kMaxHeaderFields);
}

TEST(HttpParser, BoundsTheNumberOfFields) {
  constexpr HttpLimits kRoomy = {.max_header_bytes = 16 << 10, .max_body_bytes = 100};
  for (const auto& [fields, state] : {std::pair(127, State::kDone), std::pair(128, State::kError)}) {
    HttpParser parser(kRoomy);
    EXPECT_EQ(FeedAll(parser,
                      absl::StrCat("GET / HTTP/1.1\r\nHost: x\r\n", Repeat("a: b\r\n", fields), "\r\n"), 100),
              state)
        << fields;
    EXPECT_EQ(parser.error().message.empty(), state == State::kDone);
  }
}

TEST(HttpParser, BoundsChunkHeadersAndTheirExtensions) {
  EXPECT_EQ(ErrorOf(absl::StrCat(kChunked, "1;", std::string(5000, 'a'), "\r\nx\r\n0\r\n\r\n"), 9).status,
            431);
  EXPECT_EQ(ErrorOf(absl::StrCat(kChunked, Repeat(absl::StrCat("1;", std::string(200, 'a'), "\r\nx\r\n"), 50),
                                 "0\r\n\r\n"),
                    64)
                .status,
            400);
}

TEST(HttpParser, RefusesFoldedHeaderLines) {
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\n";
  for (const std::string& text : {
           get + "A: b\r\n c\r\n\r\n",
           get + "A: b\r\n\tc\r\n\r\n",
           get + "A:\r\n c\r\n\r\n",
           get + "A: b\r\n \r\n\r\n",
           get + "A: \r\n \r\n\r\n",
           get + "A: b\r\n " + std::string(800, 'c') + "\r\n\r\n",
           std::string(kChunked) + "0\r\nA: b\r\n c\r\n\r\n",
       }) {
    for (size_t step : {1, 1000}) {
      const HttpError error = ErrorOf(text, step);
      EXPECT_EQ(error.status, 400) << text;
      EXPECT_THAT(error.message, HasSubstr("folded")) << text;
    }
  }
}

TEST(HttpParser, SurvivesRandomDamage) {
  const std::string text =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: "
      "100-continue\r\n\r\n"
      "5\r\nhello\r\n0\r\nA: b\r\n\r\n";
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = text;
    for (int edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 8);
          break;
        default:
          damaged.insert(at, 1 + random() % 8, static_cast<char>(random()));
      }
    }
    HttpParser parser(kLimits);
    const State state = FeedAll(parser, damaged, 1 + random() % 40);
    HttpParser whole(kLimits);  // cuts mean nothing, but that an error may show before the header's end
    EXPECT_EQ(FeedAll(whole, damaged, damaged.size() + 1) == State::kDone, state == State::kDone) << damaged;
    if (state == State::kError) {
      EXPECT_GE(parser.error().status, 400);
      EXPECT_FALSE(parser.error().message.empty());
      EXPECT_LE(parser.Head().path.size(), kLimits.max_header_bytes);
    } else if (state == State::kDone) {
      EXPECT_LE(parser.Release().body.size(), kLimits.max_body_bytes);
    }
  }
}

}  // namespace
}  // namespace aludel
