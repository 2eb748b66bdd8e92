#include "server/host/adapter_pool.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/bench/make_codec.h"
#include "runtime/model/transformer.h"
#include "server/host/adapter_codecs.h"
#include "tests/runtime/model/temporary_directory.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kBase[] = "tests/runtime/model/golden/tiny/llama_sharded";
constexpr absl::Duration kLong = absl::Minutes(2);

// An answer of the pool, awaited.
class Asked {
 public:
  AdapterPool::Ready ready() {
    return [this](absl::StatusOr<AdapterPool::Handle> handle) {
      answer_ = std::move(handle);
      done_.Notify();
    };
  }
  bool answered() const { return done_.HasBeenNotified(); }
  // False: none within `limit`.
  bool Wait(absl::Duration limit = kLong) { return done_.WaitForNotificationWithTimeout(limit); }
  absl::Status status() {
    EXPECT_TRUE(Wait());
    return answer_.status();
  }
  AdapterPool::Handle Take() {
    EXPECT_TRUE(Wait());
    EXPECT_TRUE(answer_.ok()) << answer_.status();
    return answer_.ok() ? *std::exchange(answer_, nullptr) : nullptr;
  }

 private:
  absl::StatusOr<AdapterPool::Handle> answer_ = nullptr;
  absl::Notification done_;
};

class AdapterPoolTest : public ::testing::Test {
 protected:
  void Open(int adapters, int resident) {
    const LoraWeights::Base base{kBase, "base-hash", ModelConfig::Load(kBase).value(), DType::kF32};
    pool_ = std::make_unique<AdapterPool>(device_.get(), base, resident);
    for (int i = 0; i < adapters; ++i) {
      Make(i);
      const absl::Status added = pool_->Add(NameOf(i), Directory(i));
      ASSERT_TRUE(added.ok()) << added;
    }
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const AdapterPool::About& about : pool_->known().adapters) names.push_back(about.name);
    return names;
  }
  static std::string NameOf(int i) { return absl::StrCat("a", i); }
  std::string Directory(int i) const { return files_.File(NameOf(i)); }
  void Make(int i) const {
    if (std::filesystem::exists(Directory(i))) return;
    ASSERT_TRUE(
        MakeAdapter({.base = kBase, .out = Directory(i), .rank = 2, .seed = static_cast<uint64_t>(i)}).ok());
  }
  void Ask(int i, Asked& asked, absl::Duration limit = kLong) {
    pool_->Acquire(NameOf(i), MonotonicNow() + limit, asked.ready());
  }
  AdapterPool::Handle Get(int i) {
    Asked asked;
    Ask(i, asked);
    return asked.Take();
  }

  const TemporaryDirectory files_;
  const std::unique_ptr<Device> device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  std::unique_ptr<AdapterPool> pool_;
};

TEST_F(AdapterPoolTest, OneOfItsBasesCacheActsFromThePromptsLastTokenOn) {
  Open(1, 1);
  ASSERT_TRUE(pool_->Add("of-base", Directory(0), CacheOf::kBase).ok());
  const std::vector<int32_t> prompt = {3, 4, 5};
  EXPECT_EQ(Get(0)->ActsFrom(prompt), 0);
  EXPECT_TRUE(Get(0)->scores_prompts());
  Asked asked;
  pool_->Acquire("of-base", MonotonicNow() + kLong, asked.ready());
  const AdapterPool::Handle handle = asked.Take();
  EXPECT_TRUE(handle->activated());
  EXPECT_FALSE(handle->scores_prompts());
  EXPECT_EQ(handle->ActsFrom(prompt), 2);
  EXPECT_EQ(handle->ActsFrom(absl::MakeConstSpan(prompt).first(1)), 0);

  // One that says itself from where on it acts.
  const std::string activated = files_.File("activated");
  std::filesystem::copy(Directory(0), activated);
  std::ifstream from(Directory(0) + "/adapter_config.json");
  const std::string config(std::istreambuf_iterator<char>(from), {});
  std::ofstream(activated + "/adapter_config.json")
      << R"({"alora_invocation_tokens": [7], )" << config.substr(config.find('{') + 1);
  const absl::Status both = pool_->Add("both", activated, CacheOf::kBase);
  EXPECT_THAT(std::string(both.message()), HasSubstr("alora_invocation_tokens"));
  EXPECT_TRUE(pool_->Add("both", activated).ok());
  std::vector<bool> begin_as_base;
  for (const AdapterPool::About& about : pool_->known().adapters) begin_as_base.push_back(about.activated);
  EXPECT_THAT(Names(), ElementsAre("a0", "both", "of-base"));
  EXPECT_THAT(begin_as_base, ElementsAre(false, true, true));
}

TEST_F(AdapterPoolTest, TellsWhichFilesEachIsOf) {
  Open(2, 1);
  ASSERT_TRUE(pool_->Add("again", Directory(0)).ok());
  const AdapterPool::Known known = pool_->known();
  ASSERT_EQ(known.adapters.size(), 3u);
  EXPECT_EQ(known.adapters[0].hash, Get(0)->hash());
  EXPECT_EQ(known.adapters[1].hash, Get(1)->hash());
  EXPECT_EQ(known.adapters[2].hash, known.adapters[0].hash);
  EXPECT_EQ(pool_->known().changes, known.changes);
  // Files that were replaced are told of once they are read.
  std::filesystem::copy(
      Directory(1), Directory(0),
      std::filesystem::copy_options::overwrite_existing | std::filesystem::copy_options::recursive);
  EXPECT_EQ(Get(0)->hash(), known.adapters[1].hash);
  EXPECT_EQ(pool_->known().adapters[0].hash, known.adapters[1].hash);
  EXPECT_GT(pool_->known().changes, known.changes);
}

TEST_F(AdapterPoolTest, OneThatAlwaysReadsItsBasesCacheMakesNone) {
  Open(1, 1);
  const absl::Status updates = pool_->Add("updates", Directory(0), CacheOf::kBaseAlways);
  EXPECT_EQ(updates.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(updates.message()), HasSubstr("updates model.layers.0.self_attn.k_proj"));

  const std::string reads = files_.File("reads");
  ASSERT_TRUE(MakeAdapter({.base = kBase, .out = reads, .rank = 2, .reads_only = true}).ok());
  ASSERT_TRUE(pool_->Add("reads", reads, CacheOf::kBaseAlways).ok());
  Asked asked;
  pool_->Acquire("reads", MonotonicNow() + kLong, asked.ready());
  const AdapterPool::Handle handle = asked.Take();
  EXPECT_TRUE(handle->reads_only() && handle->activated());
  EXPECT_EQ(handle->ActsFrom({3, 4, 5}), 3);
  EXPECT_EQ(ReadCacheOf("bases").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdapterPoolTest, LoadsOnDemandAndEvictsTheLeastRecentlyUsed) {
  Open(3, 2);
  EXPECT_THAT(Names(), ElementsAre("a0", "a1", "a2"));
  EXPECT_EQ(pool_->stats().resident, 0);
  const std::string first = Get(0)->hash();
  EXPECT_NE(Get(1)->hash(), first);
  EXPECT_EQ(Get(0)->hash(), first);  // used again: a1 is the older one now
  EXPECT_EQ(pool_->stats().loads, 2);
  Get(2);
  EXPECT_EQ(pool_->stats().evictions, 1);
  EXPECT_EQ(Get(0)->hash(), first);
  EXPECT_EQ(pool_->stats().loads, 3);  // a0 had stayed
  Get(1);
  const AdapterStats stats = pool_->stats();
  EXPECT_EQ(stats.loads, 4);
  EXPECT_EQ(stats.known, 3);
  EXPECT_EQ(stats.resident, 2);
  EXPECT_GT(stats.resident_bytes, 0);
}

TEST_F(AdapterPoolTest, NeverEvictsOneThatIsHeld) {
  Open(3, 1);
  AdapterPool::Handle held = Get(0);
  Asked one, two;
  Ask(1, one);
  Ask(2, two);
  EXPECT_FALSE(one.Wait(absl::Milliseconds(50)));
  EXPECT_EQ(pool_->stats().waiting, 2);
  held.reset();
  AdapterPool::Handle next = one.Take();
  EXPECT_FALSE(two.Wait(absl::Milliseconds(50)));
  next.reset();
  EXPECT_NE(two.Take(), nullptr);
  EXPECT_EQ(pool_->stats().resident, 1);
}

TEST_F(AdapterPoolTest, ARequestThatWaitsTooLongGoesBeforeThoseForWhatIsThere) {
  Open(2, 1);
  AdapterPool::Handle held = Get(0);
  Asked waiting, same;
  Ask(1, waiting);
  EXPECT_NE(Get(0), nullptr);  // at once, for now
  absl::SleepFor(AdapterPool::kPatience + absl::Milliseconds(50));
  Ask(0, same);
  EXPECT_FALSE(same.answered());
  held.reset();
  waiting.Take().reset();
  EXPECT_NE(same.Take(), nullptr);
}

TEST_F(AdapterPoolTest, AWaitThatIsGivenUpEndsAndLetsOthersGo) {
  Open(2, 1);
  const AdapterPool::Handle held = Get(0);
  Asked waiting, same;
  const uint64_t wait = pool_->Acquire("a1", MonotonicNow() + kLong, waiting.ready());
  ASSERT_NE(wait, 0);
  absl::SleepFor(AdapterPool::kPatience + absl::Milliseconds(50));
  Ask(0, same);
  EXPECT_FALSE(same.answered());
  pool_->GiveUp(wait, absl::CancelledError("gone"));
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kCancelled);
  EXPECT_NE(same.Take(), nullptr);
  pool_->GiveUp(wait, absl::CancelledError("gone"));
}

TEST_F(AdapterPoolTest, WaitingEndsAtTheDeadline) {
  Open(2, 1);
  const AdapterPool::Handle held = Get(0);
  Asked late;
  Ask(1, late, absl::Milliseconds(30));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pool_->stats().waiting, 0);
}

TEST_F(AdapterPoolTest, ARemovedOneEndsWithItsLastRequest) {
  Open(2, 1);
  AdapterPool::Handle held = Get(0);
  ASSERT_TRUE(pool_->Remove("a0").ok());
  EXPECT_EQ(pool_->Remove("a0").code(), absl::StatusCode::kNotFound);
  Asked gone, other;
  Ask(0, gone);
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr("no adapter a0"));
  Ask(1, other);
  EXPECT_FALSE(other.Wait(absl::Milliseconds(50)));
  EXPECT_FALSE(held->hash().empty());
  held.reset();
  EXPECT_NE(other.Take(), nullptr);
  EXPECT_TRUE(pool_->Add("a0", Directory(0)).ok());
}

TEST_F(AdapterPoolTest, ThoseWhoWaitForARemovedOneStillGetIt) {
  Open(3, 1);
  AdapterPool::Handle held = Get(0);
  Asked first, second, late;
  Ask(1, first);
  Ask(1, second);
  ASSERT_TRUE(pool_->Remove("a1").ok());
  Ask(1, late);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kNotFound);
  held.reset();
  AdapterPool::Handle removed = first.Take();
  ASSERT_NE(removed, nullptr);
  EXPECT_EQ(second.Take(), removed);
  Asked next;
  Ask(2, next);
  removed.reset();
  EXPECT_TRUE(next.status().ok()) << next.status();  // there is room: the removed one has gone
}

TEST_F(AdapterPoolTest, BadAdaptersAreNamedWhenTheyAreAddedOrLoaded) {
  Open(2, 2);
  EXPECT_EQ(pool_->Add("a0", Directory(0)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(pool_->Add("a0", Directory(1)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool_->Add("x", files_.File("none")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(pool_->Add("", Directory(0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pool_->Add("x", "tests/runtime/model/golden/adapters/llama_head").message()),
              HasSubstr("has shape"));
  // Broken after it was added.
  std::filesystem::remove(Directory(0) + "/adapter_config.json");
  Asked broken;
  Ask(0, broken);
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr("adapter_config.json"));
  EXPECT_NE(Get(1), nullptr);
}

TEST_F(AdapterPoolTest, TheEndOfThePoolAnswersThoseWhoWait) {
  Open(2, 1);
  AdapterPool::Handle held = Get(0);
  absl::Notification answered;  // whatever it is, it is let go
  pool_->Acquire(NameOf(1), MonotonicNow() + kLong,
                 [&](const absl::StatusOr<AdapterPool::Handle>&) { answered.Notify(); });
  std::thread end([&] {
    absl::SleepFor(absl::Milliseconds(20));
    held.reset();
  });
  end.join();
  pool_.reset();
  EXPECT_TRUE(answered.HasBeenNotified());
}

TEST_F(AdapterPoolTest, ManyThreadsGetWhatTheyNameAndNoMoreAreResident) {
  constexpr int kAdapters = 64, kThreads = 6, kRounds = 60;
  Open(kAdapters, 8);
  std::vector<std::string> hashes;
  for (int i = 0; i < kAdapters; ++i) hashes.push_back(Get(i)->hash());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const int i = (t * 31 + round * 17 + round * round) % kAdapters;
        const AdapterPool::Handle handle = Get(i);
        if (handle == nullptr || handle->hash() != hashes[i] || pool_->stats().resident > 8) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(pool_->stats().evictions, 0);
}

// A pool over the demo's model, and artifacts of one random format with a decoder for its first adapter.
class AdapterPoolCodecs : public ::testing::Test {
 protected:
  AdapterPoolCodecs() {
    for (int i = 1; i <= 2; ++i) {
      EXPECT_TRUE(
          MakeAdapter({.base = kChat, .out = Directory(i), .rank = 2, .seed = static_cast<uint64_t>(i)})
              .ok());
    }
    pool_ = std::make_unique<AdapterPool>(
        device_.get(), LoraWeights::Base{kChat, model_->hash(), model_->config(), DType::kF32}, 2,
        Version(1));
    for (int i = 1; i <= 2; ++i) EXPECT_TRUE(pool_->Add(absl::StrCat("a", i), Directory(i)).ok());
  }

  std::string Directory(int adapter) const { return files_.File(absl::StrCat("a", adapter)); }
  AdapterCodecs Version(uint64_t seed) const {
    const std::string artifact = files_.File(absl::StrCat("codec", seed));
    if (!std::filesystem::exists(artifact)) {
      EXPECT_TRUE(MakeCodec({.producer = "deploy/demo/base",
                             .consumer = absl::StrCat(kChat, "+", Directory(1)),
                             .out = artifact,
                             .recomputed_layers = 1,
                             .seed = seed})
                      .ok());
    }
    return AdapterCodecs::Create({.artifact = artifact, .formats = {}, .adapters = true}, model_.get())
        .value();
  }
  AdapterPool::Handle Get(const std::string& name) {
    Asked asked;
    pool_->Acquire(name, MonotonicNow() + kLong, asked.ready());
    return asked.Take();
  }
  // Of the encoder whose codes the adapter takes; "": it takes none.
  static std::string Encoder(const AdapterPool::Handle& adapter) {
    const auto opened = adapter->codecs();
    return opened->decoders.empty() ? "" : opened->decoders[0]->spec().artifact_hash;
  }

  static constexpr char kChat[] = "deploy/demo/chat";
  const TemporaryDirectory files_;
  const std::unique_ptr<Device> device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  const std::unique_ptr<Transformer> model_ =
      Transformer::Load(device_.get(), {kChat}, {.compute = DType::kF32, .max_rows = 16}).value();
  std::unique_ptr<AdapterPool> pool_;
};

TEST_F(AdapterPoolCodecs, AdaptersFollowTheArtifactThatIsSet) {
  const std::string first = Version(1).formats()[0].encoder_hash;
  const std::string second = Version(2).formats()[0].encoder_hash;
  ASSERT_NE(first, second);
  const AdapterPool::Handle resident = Get("a1");
  EXPECT_EQ(Encoder(resident), first);
  EXPECT_EQ(pool_->formats()[0].encoder_hash, first);

  EXPECT_THAT(pool_->SetCodecs(Version(2)), ElementsAre("aludel-p1"));
  EXPECT_EQ(Encoder(resident), second) << "also one that a request holds";
  EXPECT_EQ(pool_->formats()[0].encoder_hash, second);
  EXPECT_EQ(Encoder(Get("a2")), "") << "loaded behind the switch: the artifact has no decoder for it";
  EXPECT_THAT(pool_->SetCodecs(Version(2)), IsEmpty());
  EXPECT_THAT(pool_->SetCodecs({}), ElementsAre("aludel-p1"));
  EXPECT_EQ(Encoder(resident), "");
}

TEST_F(AdapterPoolCodecs, OldDecodersAreFreedByTendBehindTheirLastUser) {
  const AdapterPool::Handle adapter = Get("a1");
  std::shared_ptr<const AdapterCodecs::Opened> request = adapter->codecs();
  const std::weak_ptr<const AdapterCodecs::Opened> old = request;
  pool_->SetCodecs(Version(2));
  pool_->Tend();
  EXPECT_FALSE(old.expired()) << "a request goes on with it";
  request = nullptr;
  EXPECT_FALSE(old.expired()) << "on the request's thread, which may be an engine's";
  pool_->Tend();
  EXPECT_TRUE(old.expired());
  const std::weak_ptr<const AdapterCodecs::Opened> current = adapter->codecs();
  pool_->Tend();
  EXPECT_FALSE(current.expired());
}

TEST_F(AdapterPoolCodecs, AnAdapterOfItsBasesCacheHasNoDecodersWhateverIsSet) {
  const LoraWeights::Base base{kChat, model_->hash(), model_->config(), DType::kF32};
  const auto own = ServedAdapter::Load(device_.get(), Directory(1), base, Version(1)).value();
  const auto of_base =
      ServedAdapter::Load(device_.get(), Directory(1), base, Version(1), CacheOf::kBase).value();
  const auto before = own->codecs();
  EXPECT_EQ(own->Follow(Version(2)), before);
  EXPECT_NE(own->codecs(), before);
  EXPECT_EQ(of_base->Follow(Version(2)), nullptr);
  EXPECT_THAT(of_base->codecs()->decoders, IsEmpty());
}

}  // namespace
}  // namespace aludel
