// Decode servers that tell what their caches hold, and a gateway that believes them, over gRPC and HTTP.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_events/cache_event_service.h"
#include "server/rpc/cache_salt.h"
#include "tests/server/gateway/gateway_fixture.h"
#include "transport/monotonic_clock.h"

namespace aludel::gateway_testing {
namespace {

// A fake decode server, and what it says that it has cached.
struct TellingServer {
  explicit TellingServer(uint64_t epoch = FakeDecode::kEpoch)
      : log({.epoch = epoch, .max_changes = 64}),
        service(&log, [](const grpc::CallbackServerContext&) { return absl::OkStatus(); }),
        decode(FakeDecode::Hello, "chat", "", "fake", &service) {}
  ~TellingServer() { service.End(); }

  // Of the prompt, its first `tokens`.
  void Tell(const PrefixKeys& keys, int64_t tokens, bool removed = false) {
    for (int64_t end = kKeyTokens; end <= tokens; end += kKeyTokens) {
      const uint8_t kind = IsPrefixEnd(end) ? KeyChange::kPrefixEnd : 0;
      log.Add({keys.blocks[static_cast<size_t>(end / kKeyTokens - 1)],
               static_cast<uint8_t>(kind | (removed ? KeyChange::kRemoved : 0))});
    }
    service.Flush();
  }

  KeyLog log;
  CacheEventService service;
  FakeDecode decode;
};

class CacheFeedsTest : public GatewayTest {
 protected:
  // Of the one server.
  json Target(const std::string& prompt = kPrompt) {
    return Get(absl::StrCat("/admin/routing?prompt=", prompt)).Json()["targets"][0];
  }
  void Await(const std::function<bool()>& condition) {
    const absl::Time limit = MonotonicNow() + absl::Seconds(30);
    while (!condition()) {
      ASSERT_LT(MonotonicNow(), limit) << Target().dump();
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  void AwaitCached(int64_t tokens) {
    Await([&] {
      const json target = Target();
      return target["cached_tokens_exact"] == true && target["cached_tokens"] == tokens;
    });
  }
  PrefixKeys KeysOf(const std::string& prompt) {
    const json tokens =
        Send("POST", "/tokenize", json({{"model", "chat"}, {"prompt", prompt}}).dump()).Json();
    PrefixKeys keys = MakePrefixKeys(SaltSeed(MakeCacheSalt("", "")),
                                     tokens["tokens"].get<std::vector<int32_t>>(), /*with_blocks=*/true);
    for (uint64_t& key : keys.blocks) key = ModelKey(key, HashTexts({"chat"}));
    return keys;
  }

  static inline const std::string kPrompt = std::string(50, 'a') + std::string(60, 'b');
};

TEST_F(CacheFeedsTest, WhatAServerSaysThatItHasIsBelieved) {
  TellingServer server;
  StartGateway({&server.decode});
  WaitForAll();
  AwaitCached(0);
  const PrefixKeys keys = KeysOf(kPrompt);
  ASSERT_GE(keys.blocks.size(), 3u);
  server.Tell(keys, 48);
  AwaitCached(48);
  // More than it keeps as changes: a snapshot again.
  for (uint64_t key = 0; key < 1000; ++key) server.log.Add({key, 0});
  server.Tell(keys, 48, /*removed=*/true);
  AwaitCached(0);
}

TEST_F(CacheFeedsTest, AGatewayThatStartsLearnsItAtOnce) {
  TellingServer server;
  StartGateway({&server.decode});
  WaitForAll();
  server.Tell(KeysOf(kPrompt), 32);
  AwaitCached(32);
  server_.reset();
  gateway_.reset();
  router_.reset();
  StartGateway({&server.decode});
  WaitForAll();
  AwaitCached(32);
}

TEST_F(CacheFeedsTest, WhatAServerSaidEndsWithItsStream) {
  TellingServer server;
  StartGateway({&server.decode});
  WaitForAll();
  server.Tell(KeysOf(kPrompt), 32);
  AwaitCached(32);
  server.service.End();
  Await([&] { return Target()["cached_tokens_exact"] == false; });
  EXPECT_EQ(Target()["cached_tokens"], 0);
}

// As where a load balancer stands in front of it, or where it has just started again.
TEST_F(CacheFeedsTest, WhatAnotherProcessSaysIsNotBelieved) {
  TellingServer server(FakeDecode::kEpoch + 1);
  StartGateway({&server.decode});
  WaitForAll();
  server.Tell(KeysOf(kPrompt), 32);
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(Target()["cached_tokens_exact"], false);
  EXPECT_EQ(Target()["cached_tokens"], 0);
}

TEST_F(CacheFeedsTest, WithoutTheSettingNothingIsAsked) {
  routing_.cache_events = false;
  TellingServer server;
  StartGateway({&server.decode});
  WaitForAll();
  server.Tell(KeysOf(kPrompt), 32);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(Target()["cached_tokens_exact"], false);
  EXPECT_EQ(Target()["cached_tokens"], 0);
}

}  // namespace
}  // namespace aludel::gateway_testing
