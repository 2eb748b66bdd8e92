#include "server/gateway/access/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_replace.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr char kGood[] = "https://good.example";
constexpr char kVary[] = "Vary";
constexpr char kAllowHeaders[] = "Access-Control-Allow-Headers";

std::map<std::string, std::string> Headers(const Cors& cors, const HttpRequest& request) {
  std::map<std::string, std::string> headers;
  for (const HttpHeader& header : cors.HeadersFor(request)) {
    EXPECT_TRUE(headers.emplace(header.name, header.value).second) << header.name << " twice";
  }
  return headers;
}

HttpRequest From(const std::string& origin) {
  HttpRequest request;
  if (!origin.empty()) request.headers.push_back({"Origin", origin});
  return request;
}

HttpRequest Preflight(const std::string& origin, const std::string& headers) {
  HttpRequest request = From(origin);
  request.method = "OPTIONS";
  request.headers.push_back({"Access-Control-Request-Method", "POST"});
  request.headers.push_back({"Access-Control-Request-Headers", headers});
  return request;
}

TEST(Cors, SaysNothingWhereNoOriginIsAllowed) {
  EXPECT_THAT(Headers(Cors({}), From(kGood)), IsEmpty());
  EXPECT_THAT(Headers(Cors({}), Preflight(kGood, "a")), IsEmpty());
}

TEST(Cors, LetsAllowedPagesReadTheAnswerWithItsHeaders) {
  const auto headers = Headers(Cors({"https://other.example", kGood}), From(kGood));
  EXPECT_THAT(headers, Contains(Pair("Access-Control-Allow-Origin", kGood)));
  for (const char* name :
       {"x-request-id", "x-aludel-plan", "x-aludel-cached-tokens", "Server-Timing", "Retry-After"}) {
    EXPECT_THAT(headers.at("Access-Control-Expose-Headers"), HasSubstr(name));
  }
  EXPECT_THAT(Headers(Cors({"*"}), From(kGood)), Contains(Pair("Access-Control-Allow-Origin", "*")));
}

TEST(Cors, TellsCachesThatAnswersDependOnTheOriginWhoeverAsks) {
  const Cors cors({kGood});
  EXPECT_THAT(Headers(cors, From(kGood)), Contains(Pair(kVary, "Origin")));
  EXPECT_THAT(Headers(cors, From("https://evil.example")), ElementsAre(Pair(kVary, "Origin")));
  EXPECT_THAT(Headers(cors, From("")), ElementsAre(Pair(kVary, "Origin")));
  const std::string both = "Origin, Access-Control-Request-Headers";
  EXPECT_THAT(Headers(cors, Preflight(kGood, "a")), Contains(Pair(kVary, both)));
  EXPECT_THAT(Headers(cors, Preflight("https://evil.example", "a")), ElementsAre(Pair(kVary, both)));
}

TEST(Cors, AllowsEveryHeaderThatTheOfficialClientSends) {
  // openai 6.30.1 in a browser, chat.completions.parse(), which asks in lower case and sorted.
  const std::string asked =
      "authorization,content-type,openai-organization,openai-project,user-agent,x-stainless-arch,"
      "x-stainless-helper-method,x-stainless-lang,x-stainless-os,x-stainless-package-version,"
      "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout";
  const auto headers = Headers(Cors({kGood}), Preflight(kGood, asked));
  EXPECT_EQ(absl::StrReplaceAll(headers.at(kAllowHeaders), {{", ", ","}}), asked);
  EXPECT_THAT(headers.at("Access-Control-Allow-Methods"), HasSubstr("POST"));
  EXPECT_EQ(Headers(Cors({"*"}), Preflight(kGood, asked)).at(kAllowHeaders), headers.at(kAllowHeaders));
}

TEST(Cors, EchoesNamesOfHeadersOnly) {
  const Cors cors({kGood});
  EXPECT_EQ(Headers(cors, Preflight(kGood, " x-a ,b c,,<script>,x:y,\"q\",x_1~!")).at(kAllowHeaders),
            "x-a, x_1~!");
  EXPECT_THAT(Headers(cors, Preflight(kGood, ",,")), Not(Contains(Key(kAllowHeaders))));
  EXPECT_THAT(Headers(cors, Preflight(kGood, std::string(5000, 'a'))), Not(Contains(Key(kAllowHeaders))));
  EXPECT_THAT(Headers(cors, Preflight("https://evil.example", "a")),
              AllOf(Not(Contains(Key(kAllowHeaders))), Not(Contains(Key("Access-Control-Allow-Methods")))));
}

}  // namespace
}  // namespace aludel
