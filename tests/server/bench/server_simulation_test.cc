// The simulated store of a server: what it finds of small traces, and that a real PrefixStore finds the same.

#include <filesystem>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/bench/store/sim_frames.h"
#include "server/bench/store/store_simulation.h"
#include "server/store/prefix_store.h"
#include "tests/testing/fake_codec.h"

namespace aludel {
namespace {

constexpr double kWhole = 100;  // bytes a token
constexpr double kCut = 20;
// What a whole chunk of one block weighs in memory.
constexpr double kChunk = 256 + 64 + kTraceBlock * (4 + kWhole);

std::vector<TraceRequest> Trace(const std::vector<std::vector<int64_t>>& prompts) {
  std::vector<TraceRequest> trace;
  for (const std::vector<int64_t>& blocks : prompts) {
    trace.push_back({.arrival = static_cast<double>(trace.size()) * 1e-3,
                     .input_tokens = static_cast<int64_t>(blocks.size()) * kTraceBlock,
                     .blocks = blocks});
  }
  return trace;
}

// Memory for so many whole chunks, and a little more, up to the mark at which it makes room. Prefill takes a second a block.
StoreSimOptions Options(double chunks) {
  return {.formats = {{"whole", kWhole, 0, 0}},
          .devices = {{"memory", (chunks + 0.1) * kChunk / MemoryMarks::kHigh, 1e12}},
          .prefill_tokens_per_second = kTraceBlock};
}

StoreSimOptions OptionsWithDisk(double chunks, double disk_bytes) {
  StoreSimOptions options = Options(chunks);
  options.devices.push_back({"disk", disk_bytes, 1e9});
  return options;
}

TEST(ServerSimulation, WhatFitsIsComputedOnce) {
  for (const char* policy : {"server", "server-lru"}) {
    StoreSimOptions options = Options(10);
    options.policy = policy;
    const StoreSimResult result = SimulateStore(Trace({{1}, {2}, {1}, {2}}), options);
    EXPECT_NEAR(result.mean_delay, 0.5, 1e-6) << policy;
    EXPECT_NEAR(result.hit_shares[0], 0.5, 1e-6) << policy;
  }
}

TEST(ServerSimulation, UtilityKeepsWhatIsAskedForOften) {
  std::vector<std::vector<int64_t>> prompts = {{1}, {1}, {1}};
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t other = 0; other < 12; ++other) prompts.push_back({1000 + 12 * i + other});  // never again
    prompts.push_back({1});
  }
  StoreSimOptions options = Options(10);
  EXPECT_NEAR(SimulateStore(Trace(prompts), options).hit_shares[0], 102.0 / 1303, 1e-6);
  options.policy = "server-lru";
  EXPECT_NEAR(SimulateStore(Trace(prompts), options).hit_shares[0], 2.0 / 1303, 1e-6);
}

TEST(ServerSimulation, ThePromptsEndGoesBeforeItsBeginning) {
  const StoreSimResult result = SimulateStore(Trace({{1, 2, 3}, {4, 5}, {1, 2, 3}}), Options(3));
  EXPECT_NEAR(result.hit_shares[0], 1.0 / 8, 1e-6);
  EXPECT_NEAR(result.partial_hits, 1.0 / 3, 1e-6);
  EXPECT_EQ(result.whole_hits, 0);
}

TEST(ServerSimulation, WholeChunksAreFoundAndNoParts) {
  StoreSimOptions options = Options(100);
  options.chunk_tokens = 2 * kTraceBlock;
  const StoreSimResult result =
      SimulateStore(Trace({{1, 2, 3, 4}, {1, 2, 3, 9}, {1, 2, 3, 9}, {1, 2, 3}}), options);
  EXPECT_NEAR(result.hit_shares[0], (2 + 4 + 2) / 15.0, 1e-6);
  EXPECT_NEAR(result.whole_hits, 1 / 4.0, 1e-6);
  EXPECT_NEAR(result.partial_hits, 2 / 4.0, 1e-6);
}

TEST(ServerSimulation, TheDiskHoldsWhatMemoryHasNoRoomForAndGoesByAge) {
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < 40; ++i) prompts.push_back({i});
  for (int64_t i = 0; i < 40; ++i) prompts.push_back({i});
  const StoreSimResult all = SimulateStore(Trace(prompts), OptionsWithDisk(4, 64 * kChunk));
  EXPECT_NEAR(all.hit_shares[0] + all.hit_shares[1], 0.5, 1e-6);
  EXPECT_GT(all.hit_shares[1], 0.4);
  EXPECT_LE(all.most_used, 1);
  // A disk of less than they are has dropped the oldest ones each time that they are asked for.
  const StoreSimResult few = SimulateStore(Trace(prompts), OptionsWithDisk(4, 30 * kChunk));
  EXPECT_LT(few.hit_shares[1], 0.05);
  EXPECT_LE(few.most_used, 1);
}

TEST(ServerSimulation, WhatWasFoundOnDiskIsWrittenAgainWhenItsSegmentGoes) {
  std::vector<std::vector<int64_t>> prompts = {{1}, {1}};
  for (int64_t i = 0; i < 400; ++i) {
    prompts.push_back({1000 + i});
    if (i % 10 == 9) prompts.push_back({1});
  }
  // Memory forgets it between two uses: it has room for two, used as recently.
  StoreSimOptions options = OptionsWithDisk(2, 40 * kChunk);
  options.policy = "server-lru";
  EXPECT_NEAR(SimulateStore(Trace(prompts), options).hit_shares[1], 40.0 / 442, 1e-6);
}

TEST(ServerSimulation, ACutServesThoseWhoAskForItAndNotForAll) {
  std::vector<std::vector<int64_t>> prompts;
  for (int round = 0; round < 40; ++round) {
    for (int64_t i = 0; i < 20; ++i) prompts.push_back({i});
  }
  StoreSimOptions options = Options(10);
  options.formats.push_back({"cut", kCut, 0.1, 0, /*share=*/9});
  const StoreSimResult mixed = SimulateStore(Trace(prompts), options);
  EXPECT_GT(mixed.cuts, 0u);
  EXPECT_GT(mixed.mean_kl, 0.08);
  // All twenty have room as cuts, and half of them as whole codes.
  EXPECT_GT(mixed.hit_shares[0], 0.7);
  options.formats.back().share = 0;
  const StoreSimResult whole = SimulateStore(Trace(prompts), options);
  EXPECT_EQ(whole.cuts, 0u);
  EXPECT_EQ(whole.mean_kl, 0);
  EXPECT_LT(whole.hit_shares[0], mixed.hit_shares[0]);
}

TEST(ServerSimulation, IsNeverOverALimitAndMoreMemoryIsNotWorse) {
  std::mt19937 random(3);
  std::geometric_distribution<int64_t> which(0.02);
  std::vector<std::vector<int64_t>> prompts;
  for (int i = 0; i < 3000; ++i) prompts.push_back({which(random)});
  double before = 2;
  for (const double chunks : {4, 8, 16, 32, 64, 128}) {
    StoreSimOptions options = OptionsWithDisk(chunks, 20 * kChunk);
    options.formats.push_back({"cut", kCut, 0.1, 0});
    const StoreSimResult result = SimulateStore(Trace(prompts), options);
    EXPECT_LE(result.most_used, 1);
    EXPECT_LE(result.mean_delay, before * 1.01) << chunks;
    before = result.mean_delay;
  }
}

// A PrefixStore, asked as the simulated one is: what each tier has of a trace.
class RealStore {
 public:
  RealStore(const StoreSimOptions& options, const std::string& directory)
      : options_(options), frames_({kWhole, kCut}), store_(StoreOptions(options, directory)) {}

  void Ask(const TraceRequest& request, size_t format) {
    std::vector<int32_t> prompt;
    for (size_t b = 0; b < request.blocks.size(); ++b) {
      prompt.insert(prompt.end(), BlockTokens(request, b), static_cast<int32_t>(request.blocks[b]));
    }
    const uint8_t planes = frames_.PlanesOf(format);
    StorePosition at = store_.Begin(Format(planes), "");
    Read(prompt, &at);
    AwaitWritten();
    while (at.tokens < request.input_tokens) {
      const int64_t end = std::min(at.tokens + options_.chunk_tokens, request.input_tokens);
      if (!store_.Put(prompt, end, *frames_.Of(end - at.tokens, planes), &at)) break;
      AwaitWritten();
    }
    tokens_ += static_cast<double>(request.input_tokens);
  }
  double Share(int tier) const { return found_[tier] / tokens_; }
  StoreStats stats() const { return store_.stats(); }

 private:
  static CodecSpec Format(uint8_t planes) {
    CodecSpec spec = FakeSpec();
    spec.name = planes == 0 ? "code" : absl::StrCat("code@", planes);
    spec.kind = FrameKind::kAludel;
    return spec;
  }
  static PrefixStore::Options StoreOptions(const StoreSimOptions& options, const std::string& directory) {
    PrefixStore::Options store{.producer = "base",
                               .memory_bytes = static_cast<size_t>(options.devices[0].bytes),
                               .eviction = options.policy == "server" ? PrefixStore::Eviction::kUtility
                                                                      : PrefixStore::Eviction::kLru,
                               .cuts = {{EncoderTag(Format(0)), 1}},
                               .encoders = {EncoderTag(Format(0))}};
    store.prefill_tokens_per_second = [rate = options.prefill_tokens_per_second] { return rate; };
    if (options.devices.size() > 1) {
      store.disk =
          PrefixStore::Disk{.path = directory, .bytes = static_cast<uint64_t>(options.devices[1].bytes)};
    }
    return store;
  }
  // Leases end here: while there is one on a segment, its bytes have not gone.
  void Read(absl::Span<const int32_t> prompt, StorePosition* at) {
    for (const StoredChunk& chunk : store_.Find(prompt, absl::InfiniteDuration(), at)) {
      found_[chunk.frames == nullptr ? 1 : 0] += static_cast<double>(chunk.end.tokens - chunk.token_begin);
      if (chunk.frames == nullptr) Load(chunk, prompt);
    }
  }
  // Writing is much faster than computing, and here nothing is computed.
  void AwaitWritten() {
    while (store_.stats().queued_bytes > 0) absl::SleepFor(absl::Microseconds(100));
  }
  void Load(const StoredChunk& chunk, absl::Span<const int32_t> prompt) {
    std::promise<StoredFrames> read;
    store_.Load(chunk, prompt, [&read](StoredFrames frames) { read.set_value(std::move(frames)); });
    EXPECT_NE(read.get_future().get(), nullptr);
  }

  const StoreSimOptions& options_;
  SimFrames frames_;
  PrefixStore store_;
  double found_[2] = {};  // tokens, in memory and on disk
  double tokens_ = 0;
};

// Conversations that begin alike in places and go on.
std::vector<TraceRequest> Conversations(int requests, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int64_t>> open;
  std::vector<std::vector<int64_t>> prompts;
  int64_t next = 100;
  for (int i = 0; i < requests; ++i) {
    if (open.size() < 12) open.push_back({static_cast<int64_t>(random() % 3)});
    std::vector<int64_t>& one = open[random() % open.size()];
    for (size_t more = 1 + random() % 3; more > 0; --more) one.push_back(next++);
    prompts.push_back(one);
    if (one.size() > 12) one = {static_cast<int64_t>(random() % 3)};
  }
  return Trace(prompts);
}

TEST(ServerSimulation, FindsWhatARealStoreFinds) {
  for (const char* policy : {"server", "server-lru"}) {
    for (const double disk_chunks : {0, 120}) {
      for (const int64_t blocks_in_chunk : {1, 2}) {
        const std::string name = absl::StrCat(policy, "-", disk_chunks, "-", blocks_in_chunk);
        const std::string directory = absl::StrCat(testing::TempDir(), "/sim-", name);
        std::filesystem::remove_all(directory);
        StoreSimOptions options = disk_chunks > 0 ? OptionsWithDisk(60, disk_chunks * kChunk) : Options(60);
        options.policy = policy;
        options.chunk_tokens = blocks_in_chunk * kTraceBlock;
        options.formats.push_back({"cut", kCut, 0.1, 0});
        // Computing takes so long that it makes no difference how fast a busy machine reads.
        options.prefill_tokens_per_second = 1;
        std::vector<TraceRequest> trace = Conversations(250, std::random_device()());
        const std::vector<size_t> formats = DrawFormats(trace.size(), options);
        RealStore real(options, directory);
        // Both have one clock: of chunks used alike the time of the use decides.
        const double begun = MemoryOrder::Now();
        for (size_t i = 0; i < trace.size(); ++i) {
          trace[i].arrival = MemoryOrder::Now() - begun;
          real.Ask(trace[i], formats[i]);
        }
        const StoreSimResult simulated = SimulateStore(trace, options);
        EXPECT_NEAR(simulated.hit_shares[0], real.Share(0), 0.03) << name;
        EXPECT_GT(real.Share(0), 0.1) << name;
        EXPECT_EQ(real.stats().cuts > 0, policy == std::string("server")) << name;
        if (disk_chunks == 0) continue;
        EXPECT_NEAR(simulated.hit_shares[1], real.Share(1), 0.03) << name;
        // What is written while a segment is read may find no room.
        EXPECT_NEAR(simulated.written_bytes / static_cast<double>(real.stats().written_bytes), 1, 0.1)
            << name;
        EXPECT_GT(real.stats().disk.evictions, 0u) << name;
      }
    }
  }
}

}  // namespace
}  // namespace aludel
