#include "server/gateway/responses/response_store.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

const absl::Time kBegin = absl::UnixEpoch();

StoredResponse OfBytes(size_t bytes, const std::string& item = "") {
  StoredResponse response;
  response.body = std::string(bytes, 'x');
  if (!item.empty()) response.items = {{item, "{}"}};
  return response;
}

TEST(ResponseStore, ShowsAClientItsOwnOnly) {
  ResponseStore store(ResponseStore::Options{});
  store.Put("ann", "r", OfBytes(1, "i"), kBegin);
  EXPECT_NE(store.Find("ann", "r", kBegin), nullptr);
  EXPECT_TRUE(store.FindItem("ann", "i", kBegin));
  EXPECT_EQ(store.Find("bob", "r", kBegin), nullptr);
  EXPECT_FALSE(store.FindItem("bob", "i", kBegin));
  EXPECT_FALSE(store.Erase("bob", "r", kBegin));
  EXPECT_TRUE(store.Erase("ann", "r", kBegin));
  EXPECT_FALSE(store.FindItem("ann", "i", kBegin));
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, ForgetsWhatIsTooOld) {
  ResponseStore store({.max_age = absl::Seconds(10)});
  store.Put("ann", "r", OfBytes(1), kBegin);
  store.Put("bob", "s", OfBytes(1), kBegin + absl::Seconds(5));
  EXPECT_NE(store.Find("ann", "r", kBegin + absl::Seconds(9)), nullptr);
  EXPECT_EQ(store.Find("ann", "r", kBegin + absl::Seconds(10)), nullptr);
  EXPECT_NE(store.Find("bob", "s", kBegin + absl::Seconds(10)), nullptr);
  EXPECT_EQ(store.size(), 1);
}

TEST(ResponseStore, PushesOutTheOldestOfTheClientThatHoldsMost) {
  ResponseStore store({.max_responses = 3});
  store.Put("bob", "b", OfBytes(1), kBegin);
  for (int i = 0; i < 5; ++i) store.Put("ann", absl::StrCat("a", i), OfBytes(100), kBegin);
  EXPECT_NE(store.Find("bob", "b", kBegin), nullptr);
  EXPECT_EQ(store.Find("ann", "a2", kBegin), nullptr);
  EXPECT_NE(store.Find("ann", "a3", kBegin), nullptr);
  EXPECT_EQ(store.size(), 3);
}

TEST(ResponseStore, LetsManySmallAnswersPushOutNoFewLargeOnes) {
  ResponseStore store({.max_responses = 1024});
  for (int i = 0; i < 60; ++i) store.Put("bob", absl::StrCat("b", i), OfBytes(100000), kBegin);
  for (int i = 0; i < 1024; ++i) store.Put("ann", absl::StrCat("a", i), OfBytes(1), kBegin);
  for (int i = 0; i < 60; ++i) EXPECT_NE(store.Find("bob", absl::StrCat("b", i), kBegin), nullptr) << i;
  EXPECT_EQ(store.Find("ann", "a59", kBegin), nullptr);
  EXPECT_NE(store.Find("ann", "a60", kBegin), nullptr);
  EXPECT_EQ(store.size(), 1024);
}

TEST(ResponseStore, LetsItsClientsUseItAtOnce) {
  ResponseStore store({.max_responses = 20});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      const std::string client = absl::StrCat(t % 2);
      for (int i = 0; i < 2000; ++i) {
        const std::string id = absl::StrCat(t, "-", i);
        store.Put(client, id, OfBytes(100, "i" + id), kBegin);
        const auto found = store.Find(client, id, kBegin);
        const auto item = store.FindItem(client, "i" + id, kBegin);
        if (i % 3 == 0) store.Erase(client, id, kBegin);
        // What was found stays whole, also when another thread removes it.
        EXPECT_TRUE(found == nullptr || found->body == std::string(100, 'x'));
        EXPECT_TRUE(item == nullptr || *item == "{}");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.size(), 20);
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 2000; ++i) store.Erase(absl::StrCat(t % 2), absl::StrCat(t, "-", i), kBegin);
  }
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, HoldsNoMoreBytesThanItMay) {
  ResponseStore store({.max_bytes = 10000});
  for (int i = 0; i < 20; ++i) {
    store.Put("ann", absl::StrCat(i), OfBytes(2000), kBegin);
    EXPECT_LE(store.bytes(), 10000);
  }
  EXPECT_EQ(store.size(), 3);
  store.Put("ann", "large", OfBytes(10000), kBegin);
  EXPECT_EQ(store.Find("ann", "large", kBegin), nullptr);
  EXPECT_EQ(store.size(), 3);
}

TEST(ResponseStore, KeepsNothingWhereNoneMayBeKept) {
  ResponseStore store({.max_responses = 0});
  store.Put("ann", "r", OfBytes(1), kBegin);
  EXPECT_FALSE(store.enabled());
  EXPECT_EQ(store.Find("ann", "r", kBegin), nullptr);
}

}  // namespace
}  // namespace aludel
