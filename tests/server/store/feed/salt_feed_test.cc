// Two salts share nothing: a request for what is stored under another salt does what a request for what nobody has stored
// does, look-up by look-up, in every tier. What it does is what it takes; tests/bench/salt_timing.py measures that.

#include <unistd.h>

#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/feed/prefix_feed.h"
#include "tests/server/store/feed/memory_sink.h"
#include "tests/server/store/remote_fixture.h"

namespace aludel {
namespace {

constexpr char kStored[] = "abcdefgh";  // under "alice", in two chunks
constexpr char kNobodys[] = "ABCDEFGH";

// By name; only what differs from 0.
using Deeds = std::map<std::string, int64_t>;

class SaltFeed : public RemoteStore {
 protected:
  SaltFeed() : directory_(absl::StrCat(::testing::TempDir(), "/salt-feed-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~SaltFeed() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<PrefixStore> OpenWithDisk() const {
    return std::make_unique<PrefixStore>(PrefixStore::Options{
        .producer = "base",
        .memory_bytes = 1 << 20,
        .disk = PrefixStore::Disk{.path = directory_, .bytes = 1 << 20},
        .remote = PrefixStore::Remote{.address = redis_.address(), .max_wait = absl::Seconds(10)},
        .encoders = {EncoderTag(FakeSpec())}});
  }

  // What the remote was asked so far, a command each.
  Deeds AtRemote() const {
    Deeds calls;
    for (const absl::string_view line : absl::StrSplit(Ask(redis_, {"INFO", "commandstats"}).text, "\r\n")) {
      const std::pair<absl::string_view, absl::string_view> named =
          absl::StrSplit(line, absl::MaxSplits(':', 1));
      const std::pair<absl::string_view, absl::string_view> counted =
          absl::StrSplit(named.second, absl::MaxSplits(',', 1));
      int64_t count = 0;
      if (!absl::StartsWith(named.first, "cmdstat_") || named.first == "cmdstat_info") continue;
      if (absl::SimpleAtoi(absl::StripPrefix(counted.first, "calls="), &count))
        calls[std::string(named.first)] = count;
    }
    return calls;
  }
  // So far.
  Deeds AllOf(PrefixStore& store) const {
    const StoreStats stats = store.stats();
    Deeds deeds = AtRemote();
    const std::pair<const char*, uint64_t> counts[] = {{"hits", stats.hits},
                                                       {"partial hits", stats.partial_hits},
                                                       {"misses", stats.misses},
                                                       {"tokens from memory", stats.memory.hit_tokens},
                                                       {"tokens from disk", stats.disk.hit_tokens},
                                                       {"tokens from the remote", stats.remote.hit_tokens},
                                                       {"entries of memory", stats.memory.entries},
                                                       {"entries of the disk", stats.disk.entries},
                                                       {"loads from disk", stats.loads},
                                                       {"loads from the remote", stats.remote.loads},
                                                       {"bytes to disk", stats.written_bytes},
                                                       {"bytes to the remote", stats.remote.written_bytes},
                                                       {"late at the remote", stats.remote.late}};
    for (const auto& [name, count] : counts) deeds[name] = static_cast<int64_t>(count);
    return deeds;
  }
  // What one request has a store do: its prompt, and nobody else asks meanwhile.
  Deeds Of(PrefixStore& store, const std::string& text, const std::string& salt) {
    const Deeds before = AllOf(store);
    const std::vector<int32_t> prompt = Letters(text);
    const auto sink = std::make_shared<MemorySink>();
    std::promise<absl::StatusOr<PrefixFeed::Sent>> done;
    const auto feed = std::make_shared<PrefixFeed>(
        PrefixFeed::Context{&store, &flights_, &timer_},
        PrefixFeed::Prompt{.codec = &codec_, .salt = salt, .tokens = prompt, .patience = absl::Seconds(20)});
    feed->Start(
        sink, [](size_t) { return true; },
        [&done](absl::StatusOr<PrefixFeed::Sent> sent) { done.set_value(std::move(sent)); });
    const absl::StatusOr<PrefixFeed::Sent> sent = done.get_future().get();
    EXPECT_TRUE(sent.ok()) << sent.status();
    Deeds deeds;
    for (const auto& [name, count] : AllOf(store)) {
      const auto was = before.find(name);
      const int64_t more = count - (was == before.end() ? 0 : was->second);
      if (more != 0) deeds[name] = more;
    }
    if (sent.ok()) deeds["tokens sent"] = sent->end.tokens;
    deeds["frames sent"] = static_cast<int64_t>(sink->payloads.size());
    return deeds;
  }
  void ExpectNothingShared(PrefixStore& store, const std::string& tier) {
    const Deeds miss = Of(store, kNobodys, "bob");
    const Deeds of_anothers = Of(store, kStored, "bob");
    EXPECT_EQ(of_anothers, miss) << tier;
    EXPECT_EQ(miss.at("misses"), 1);
    EXPECT_EQ(miss.count("loads from disk") + miss.count("loads from the remote"), 0u) << tier;
    // Beside which the owner's own is a hit, of that tier.
    const Deeds own = Of(store, kStored, "alice");
    EXPECT_EQ(own.at("hits"), 1) << tier;
    EXPECT_EQ(own.at("tokens from " + tier), 8);
    EXPECT_EQ(own.at("frames sent"), 4);
  }

  const std::string directory_;
  const CodecSpec codec_ = FakeSpec();
  Flights flights_{4};
  Timer timer_;
};

TEST_F(SaltFeed, WhatAnotherSaltHasInMemoryIsAMiss) {
  const auto store = OpenWithDisk();
  Share(*store, kStored, "alice");
  ASSERT_TRUE(Await([&] { return store->stats().disk.entries == 2; }));
  ExpectNothingShared(*store, "memory");
}

TEST_F(SaltFeed, WhatAnotherSaltHasOnDiskIsAMiss) {
  { Share(*OpenWithDisk(), kStored, "alice"); }
  const auto store = OpenWithDisk();
  ASSERT_TRUE(AwaitOpen(*store));
  ASSERT_EQ(store->stats().disk.entries, 2u);
  ExpectNothingShared(*store, "disk");
}

TEST_F(SaltFeed, WhatAnotherSaltHasAtTheRemoteIsAMiss) {
  Share(*Open(redis_), kStored, "alice");
  const auto store = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*store));
  ExpectNothingShared(*store, "the remote");
}

}  // namespace
}  // namespace aludel
