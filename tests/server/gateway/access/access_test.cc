#include "server/gateway/access/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Hex(absl::string_view key) {
  const auto hash = HashApiKey(key);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash.data()), hash.size()));
}

// A clock that stands still until it is moved, and clients "a" (key "key-a") and "b".
class AccessTest : public ::testing::Test {
 protected:
  void SetLimits(const KeyLimits& a) {
    access_.SetKeys({{.name = "a", .sha256 = HashApiKey("key-a"), .limits = a},
                     {.name = "b", .sha256 = HashApiKey("key-b"), .limits = {}}});
  }
  std::optional<ApiError> Admit(const std::string& client) { return access_.Admit(client, &grant_); }
  int Status(const std::optional<ApiError>& error) { return error ? error->status : 200; }

  absl::Time now_ = absl::FromUnixSeconds(1700000000);
  Access access_{KeyLimits{}, [this] { return now_; }};
  std::shared_ptr<Access::Grant> grant_;
};

TEST_F(AccessTest, LetsEveryoneInWhereNoKeysAreSet) {
  std::string client = "before";
  EXPECT_FALSE(access_.Identify("", &client));
  EXPECT_EQ(client, "");
  EXPECT_FALSE(Admit(client));
}

TEST_F(AccessTest, KnowsAClientByItsKeyAlone) {
  SetLimits({});
  std::string client;
  EXPECT_FALSE(access_.Identify("Bearer key-b", &client));
  EXPECT_EQ(client, "b");
  EXPECT_FALSE(access_.Identify("bearer key-a", &client));
  EXPECT_EQ(client, "a");
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "Bearer key-c", "Basic key-a", "key-a", "Bearer  key-a"}) {
    const auto error = access_.Identify(wrong, &client);
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->status, 401);
    EXPECT_EQ(error->code, "invalid_api_key");
    EXPECT_EQ(client, "");
  }
}

TEST_F(AccessTest, RefusesRequestsBeyondTheRateUntilItsMinuteHasRefilled) {
  SetLimits({.requests_per_minute = 2});
  EXPECT_FALSE(Admit("a"));
  EXPECT_FALSE(Admit("a"));
  const auto error = Admit("a");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 429);
  EXPECT_EQ(error->retry_after_seconds, 30);
  EXPECT_FALSE(Admit("b"));  // its own bucket
  now_ += absl::Seconds(30);
  EXPECT_FALSE(Admit("a"));
  EXPECT_EQ(Status(Admit("a")), 429);
}

TEST_F(AccessTest, ChargesTokensWhenTheyAreKnown) {
  SetLimits({.tokens_per_minute = 60});
  ASSERT_FALSE(Admit("a"));
  grant_->ChargeTokens(90);  // 30 below zero
  const auto error = Admit("a");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "rate_limit_exceeded");
  EXPECT_EQ(error->retry_after_seconds, 31);
  now_ += absl::Seconds(31);
  EXPECT_FALSE(Admit("a"));
}

TEST_F(AccessTest, ChargesPromptsBeyondTheFirstAsRequests) {
  SetLimits({.requests_per_minute = 60});
  ASSERT_FALSE(Admit("a"));
  grant_->ChargeRequests(-1);
  grant_->ChargeRequests(0);
  ASSERT_FALSE(Admit("a"));
  grant_->ChargeRequests(88);  // 30 below zero
  const auto error = Admit("a");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "rate_limit_exceeded");
  EXPECT_EQ(error->retry_after_seconds, 31);
  now_ += absl::Seconds(31);
  EXPECT_FALSE(Admit("a"));
}

TEST_F(AccessTest, CountsRequestsInProgress) {
  SetLimits({.max_concurrent = 1});
  ASSERT_FALSE(Admit("a"));
  std::shared_ptr<Access::Grant> second;
  EXPECT_EQ(Status(access_.Admit("a", &second)), 429);
  grant_.reset();
  EXPECT_FALSE(access_.Admit("a", &second));
}

TEST_F(AccessTest, WidensAGrantToTheAnswersOfItsRequest) {
  SetLimits({.max_concurrent = 4});
  ASSERT_FALSE(Admit("a"));
  EXPECT_FALSE(grant_->Widen(2, 8));
  EXPECT_EQ(grant_->places(), 4);
  std::shared_ptr<Access::Grant> second;
  EXPECT_EQ(Status(access_.Admit("a", &second)), 429);
  grant_.reset();
  std::shared_ptr<Access::Grant> third;
  ASSERT_FALSE(access_.Admit("a", &second));
  ASSERT_FALSE(access_.Admit("a", &third));
  EXPECT_FALSE(third->Widen(2, 2));
  EXPECT_EQ(Status(second->Widen(3, 3)), 429);
  EXPECT_EQ(second->places(), 1);
  EXPECT_FALSE(second->Widen(2, 2));
  std::shared_ptr<Access::Grant> fourth;
  EXPECT_EQ(Status(access_.Admit("a", &fourth)), 429);
  third.reset();
  EXPECT_FALSE(access_.Admit("a", &fourth));
}

TEST_F(AccessTest, KeepsWhatAClientUsedThroughAReloadAndForgetsAKeyThatIsGone) {
  SetLimits({.requests_per_minute = 1});
  ASSERT_FALSE(Admit("a"));
  SetLimits({.requests_per_minute = 1});
  EXPECT_EQ(Status(Admit("a")), 429);
  access_.SetKeys({});
  std::string client;
  EXPECT_EQ(Status(access_.Identify("Bearer key-a", &client)), 401);
  grant_.reset();  // of a client that is no more
  access_.SetKeys({});
  EXPECT_EQ(Status(Admit("a")), 401);
}

TEST(ApiKeys, ReadsNamesHashesAndLimits) {
  const auto keys = ParseApiKeys(
      absl::StrCat("# ours\n\nalice ", Hex("one"), " max_concurrent=3 # comment\r\nbob ", Hex("two"), "\n"),
      "keys", {.requests_per_minute = 7});
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].name, "alice");
  EXPECT_EQ((*keys)[0].sha256, HashApiKey("one"));
  EXPECT_EQ((*keys)[0].limits.max_concurrent, 3);
  EXPECT_EQ((*keys)[0].limits.requests_per_minute, 7);
  EXPECT_EQ((*keys)[1].limits.max_concurrent, 0);
  EXPECT_EQ((*keys)[1].limits.max_n, 0);
  EXPECT_TRUE((*keys)[1].limits.may_set_priority);
}

TEST(ApiKeys, ReadsWhatARequestMayAskFor) {
  const auto keys = ParseApiKeys(
      absl::StrCat("alice ", Hex("one"), " max_n=3\nbob ", Hex("two"), " max_n=0 may_set_priority=1"), "keys",
      {.max_n = 2, .may_set_priority = false});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*keys)[0].limits.max_n, 3);
  EXPECT_FALSE((*keys)[0].limits.may_set_priority);
  EXPECT_EQ((*keys)[1].limits.max_n, 0);
  EXPECT_TRUE((*keys)[1].limits.may_set_priority);
  const auto wrong = ParseApiKeys(absl::StrCat("a ", Hex("x"), " may_set_priority=2"), "keys", {});
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("\"may_set_priority=2\", want 0 or 1"));
  const auto weights = ParseApiKeys(absl::StrCat("a ", Hex("x"), " weight=3\nb ", Hex("y")), "keys", {});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)[0].limits.weight, 3);
  EXPECT_EQ((*weights)[1].limits.weight, 1);
  const auto none = ParseApiKeys(absl::StrCat("a ", Hex("x"), " weight=0"), "keys", {});
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("\"weight=0\", want a weight from 1 to 1000"));
}

TEST(ApiKeys, AdministratorsAreNamed) {
  const auto keys =
      ParseApiKeys(absl::StrCat("alice ", Hex("one"), " admin=1\nbob ", Hex("two")), "keys", {});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE((*keys)[0].limits.admin);
  EXPECT_FALSE((*keys)[1].limits.admin);
}

TEST(ApiKeys, NamesTheLineThatIsWrongAndNeverWhatMayBeAKey) {
  const auto error = [](const std::string& text) {
    return std::string(ParseApiKeys(text, "keys", {}).status().message());
  };
  EXPECT_THAT(error("\nalice sk-secret"), HasSubstr("keys:2: want NAME SHA256-IN-HEX"));
  EXPECT_THAT(error("alice sk-secret"), Not(HasSubstr("sk-secret")));
  EXPECT_THAT(error(absl::StrCat("a ", Hex("x"), " speed=9")), HasSubstr("found \"speed\""));
  EXPECT_THAT(error(absl::StrCat("a ", Hex("x"), " max_concurrent=-1")), HasSubstr("want NAME=NUMBER"));
  EXPECT_THAT(error(absl::StrCat("a ", Hex("x"), "\na ", Hex("y"))),
              HasSubstr("keys:2: found name \"a\" twice"));
  EXPECT_FALSE(LoadApiKeys("/nonexistent/keys", {}).ok());
  EXPECT_THAT(std::string(LoadApiKeys("/dev/zero", {}).status().message()), HasSubstr("want a regular file"));
}

}  // namespace
}  // namespace aludel
