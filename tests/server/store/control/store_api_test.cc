#include "server/store/control/store_api.h"

#include <openssl/sha.h>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/rpc/cache_salt.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr char kToken[] = "operator";

class StoreApiTest : public ::testing::Test {
 protected:
  StoreApiTest() {
    const auto find_format = [this](absl::string_view name) {
      return name == codec_.name ? std::make_shared<const CodecSpec>(codec_) : nullptr;
    };
    StoreApi::Options options{.commands = StoreCommands({.store = &store_, .find_format = find_format})};
    SHA256(reinterpret_cast<const uint8_t*>(kToken), sizeof(kToken) - 1, options.token_sha256.data());
    api_ = std::make_unique<StoreApi>(std::move(options));
  }

  HttpResponse Ask(const std::string& path, const std::string& body, const std::string& authorization,
                   const std::string& method = "POST") {
    HttpRequest request{.method = method, .path = path, .body = body};
    if (!authorization.empty()) request.headers.push_back({"Authorization", authorization});
    return api_->Answer(request).value_or(HttpResponse{.status = 0});
  }
  json Ask(const std::string& path, const json& body, int status = 200) {
    const HttpResponse response = Ask(path, body.dump(), std::string("Bearer ") + kToken);
    EXPECT_EQ(response.status, status) << path << " " << body << " " << response.body;
    return json::parse(response.body);
  }
  json Prompt(const std::string& text, const std::string& key = "") {
    json body = {{"tokens", Letters(text)}, {"format", codec_.name}};
    if (!key.empty()) body["key"] = key;
    return body;
  }

  CodecSpec codec_ = FakeSpec();
  PrefixStore store_{{.producer = "base", .memory_bytes = 1 << 20, .pinned_bytes = 1000}};
  std::unique_ptr<StoreApi> api_;
};

TEST_F(StoreApiTest, AnswersThoseWhoHaveTheTokenAlone) {
  for (const char* path : {"/store/lookup", "/store/clear", "/store/nothing"}) {
    EXPECT_EQ(Ask(path, "{}", "").status, 401) << path;
    EXPECT_EQ(Ask(path, "{}", "Bearer").status, 401) << path;
    EXPECT_EQ(Ask(path, "{}", "Bearer operato").status, 401) << path;
    EXPECT_EQ(Ask(path, "{}", "operator").status, 401) << path;
  }
  EXPECT_EQ(Ask("/store/nothing", "{}", "Bearer operator").status, 404);
  EXPECT_EQ(Ask("/store/tenants", "", "Bearer operator", "GET").status, 405);
  EXPECT_EQ(Ask("/store/tenants", "", "Bearer operator").status, 200);
  EXPECT_EQ(Ask("/metrics", "", "").status, 0) << "another one's";
}

TEST_F(StoreApiTest, AClearOfAPromptTakesWhatIsCutOfItAndNoMore) {
  codec_.kind = FrameKind::kAludel;
  codec_.name = "code@1";
  const StorePosition part = store_.Begin(codec_, "");
  codec_.name = "code";
  const std::vector<uint8_t> plane = {1, 7};
  const auto put = [&](const std::string& text, int64_t end, StorePosition* at) {
    const auto begin = static_cast<uint32_t>(at->tokens);
    ASSERT_TRUE(store_.Put(Letters(text), end, {{{0, 1, 0, begin, 4}, plane}}, at));
  };
  StorePosition shared = store_.Begin(codec_, "");
  put("abcdefgh", 4, &shared);
  StorePosition mine = shared, other = shared;
  mine.planes = other.planes = part.planes;
  put("abcdefgh", 8, &mine);
  put("abcdWXYZ", 8, &other);
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefgh"))["tokens"], 4);
  EXPECT_EQ(Ask("/store/clear", Prompt("abcdefgh"))["chunks"], 1);
  codec_.name = "code@1";
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefgh"))["tokens"], 4);
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdWXYZ"))["tokens"], 8);
}

TEST_F(StoreApiTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* body : {"[]", "{", "{\"token\": [1]}", "[[[[[[[]]]]]]]"}) {
    EXPECT_EQ(Ask("/store/lookup", body, "Bearer operator").status, 400) << body;
  }
  for (const json& tokens : {json::array(), json("abc"), json({1.5}), json({-1})}) {
    const json refused = Ask("/store/lookup", {{"tokens", tokens}, {"format", codec_.name}}, 400);
    EXPECT_EQ(refused["error"].get<std::string>().rfind("'tokens' ", 0), 0u) << refused;
  }
  Ask("/store/lookup", {{"tokens", {1}}, {"format", "none"}}, 400);
  Ask("/store/clear", json::object(), 400);
  Ask("/store/clear", {{"all", true}, {"key", "alice"}}, 400);
  Ask("/store/clear", {{"tenant", "12"}}, 400);
  Ask("/store/clear", {{"tenant", ""}, {"format", codec_.name}}, 400);
  Ask("/store/clear", {{"key", "alice"}, {"format", ""}}, 400);
  Ask("/store/clear", {{"all", true}, {"tokens", {1}}, {"format", codec_.name}}, 400);
  Ask("/store/clear", {{"key", 1}}, 400);
  Ask("/store/list", {{"tokens", {1}}, {"format", codec_.name}}, 400);
  Ask("/store/pin", {{"tokens", {1}}, {"format", codec_.name}, {"ttl_s", 0}}, 400);
  Ask("/store/pin", {{"tokens", {1}}, {"format", codec_.name}, {"ttl_s", 604801}}, 400);
  Ask("/store/pin", {{"tokens", {1}}, {"format", codec_.name}, {"ttl_s", 1.5}}, 400);
  Ask("/store/quota", {{"memory_bytes", 1}}, 400);
  Ask("/store/quota", {{"key", "alice"}, {"cache_salt", "a"}, {"memory_bytes", 1}}, 400);
  Ask("/store/quota", {{"key", "alice"}, {"memory_bytes", uint64_t{1} << 63}}, 400);
  Ask("/store/quota", {{"key", "alice"}}, 400);
  Ask("/store/quota", {{"key", "alice"}, {"memory_bytes", -1}}, 400);
  Ask("/store/list", {{"limit", 0}}, 400);
}

TEST_F(StoreApiTest, LooksUpPinsListsAndClearsByKeySaltAndPrefix) {
  const std::string alice = MakeCacheSalt("alice", "");
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", alice));
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("alice", "fine")));
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("bob", "")));

  const json found = Ask("/store/lookup", Prompt("abcdefghijkl", "alice"));
  EXPECT_EQ(found["tokens"], 8);
  EXPECT_EQ(found["memory_tokens"], 8);
  EXPECT_EQ(found["disk_tokens"], 0);
  EXPECT_EQ(found["remote_tokens"], 0);
  EXPECT_EQ(found["chunks"].size(), 2u);
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefgh", "carol"))["tokens"], 0);
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefgh"))["tokens"], 0);

  json pin = Prompt("abcd", "alice");
  pin["ttl_s"] = 100;
  EXPECT_EQ(Ask("/store/pin", pin)["tokens"], 4);
  Ask("/store/pin", Prompt("abcdefgh", "bob"), 409);  // no room among the pinned
  const json chunks = Ask("/store/list", {{"key", "alice"}})["chunks"];
  ASSERT_EQ(chunks.size(), 4u);
  int pinned = 0;
  for (const json& chunk : chunks) pinned += chunk["pinned_s"] > 0 ? 1 : 0;
  EXPECT_EQ(pinned, 1);
  EXPECT_EQ(Ask("/store/unpin", Prompt("abcd", "alice"))["tokens"], 4);

  EXPECT_EQ(Ask("/store/tenants", json::object())["tenants"].size(), 2u);
  EXPECT_EQ(Ask("/store/clear", {{"key", "alise"}})["chunks"], 0) << "mistyped";
  EXPECT_EQ(Ask("/store/clear", {{"key", "alice"}, {"cache_salt", "fine"}})["chunks"], 2);
  EXPECT_EQ(Ask("/store/list", {{"key", "alice"}})["chunks"].size(), 2u);
  Ask("/store/clear", Prompt("abcdefgh", "alice"));  // its last chunk
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefgh", "alice"))["tokens"], 4);
  Ask("/store/clear", {{"tenant", chunks[0]["tenant"]}});
  EXPECT_EQ(Ask("/store/list", json::object())["chunks"].size(), 2u) << "bob's";
  Ask("/store/clear", {{"format", codec_.name}});
  EXPECT_EQ(store_.stats().memory.entries, 0u);
  ASSERT_TRUE(PutLetters(store_, "abcdefgh"));
  Ask("/store/clear", {{"all", true}});
  EXPECT_EQ(store_.stats().memory.entries, 0u);
}

TEST_F(StoreApiTest, SetsAQuotaOfOneKey) {
  ASSERT_TRUE(PutLetters(store_, "abcdefghijkl", MakeCacheSalt("alice", "")));
  ASSERT_TRUE(PutLetters(store_, "abcdefghijkl", MakeCacheSalt("bob", "")));
  const json set = Ask("/store/quota", {{"key", "alice"}, {"memory_bytes", 500}});
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefghijkl", "alice"))["tokens"], 4);
  EXPECT_EQ(Ask("/store/lookup", Prompt("abcdefghijkl", "bob"))["tokens"], 12);
  Ask("/store/quota", {{"key", "alice"}, {"disk_bytes", 700}});
  for (const json& tenant : Ask("/store/tenants", json::object())["tenants"]) {
    EXPECT_EQ(tenant["quota"]["memory_bytes"], tenant["tenant"] == set["tenant"] ? 500 : 0);
    EXPECT_EQ(tenant["quota"]["disk_bytes"], tenant["tenant"] == set["tenant"] ? 700 : 0);
  }
}

}  // namespace
}  // namespace aludel
