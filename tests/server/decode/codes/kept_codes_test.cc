#include "server/decode/codes/kept_codes.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

constexpr size_t kMemory = 1 << 20;

// Handoffs of letters, in chunks of four tokens with a frame for each of two layers.
class Kept : public ::testing::Test {
 protected:
  std::unique_ptr<FrameCollector> Collect(const std::string& salt = "", const CodecSpec& codec = FakeSpec()) {
    auto collector = codes_.Collect(std::make_shared<const CodecSpec>(codec), salt);
    if (collector != nullptr) collector->Restart(1);
    return collector;
  }
  static FrameHeader Header(uint32_t sequence, const StoredFrame& frame) {
    return {.kind = FrameKind::kScd, .sequence = sequence, .coverage = frame.coverage};
  }
  // All frames of the prompt, the last one first.
  static void AddBackwards(const std::string& text, FrameCollector& collector, int attempt = 1) {
    const std::vector<int32_t> prompt = Letters(text);
    std::vector<StoredFrame> frames;
    for (int64_t begin = 0; begin < static_cast<int64_t>(prompt.size()); begin += 4) {
      for (StoredFrame& frame : LetterFrames(prompt, begin, begin + 4)) frames.push_back(std::move(frame));
    }
    for (size_t i = frames.size(); i-- > 0;) {
      collector.Add(attempt, Header(static_cast<uint32_t>(i), frames[i]), frames[i].payload);
    }
  }
  int64_t Tokens(const std::string& text, const std::string& salt = "", const CodecSpec& codec = FakeSpec()) {
    return codes_.Tokens(codec, salt, Letters(text));
  }
  void Receive(const std::string& text, const std::string& salt = "") {
    const auto collector = Collect(salt);
    AddBackwards(text, *collector);
    collector->Keep(Letters(text));
  }

  PrefixStore store_{{.producer = "received", .memory_bytes = kMemory}};
  KeptCodes codes_{&store_, kMemory, [] { return 0.0; }};
};

TEST_F(Kept, KeepsACompleteHandoffInWhateverOrderItsFramesCame) {
  Receive("abcdefgh");
  EXPECT_EQ(Tokens("abcdefgh"), 8);
  EXPECT_EQ(Tokens("abcdefghij"), 8);
  EXPECT_EQ(Tokens("abcdxxxx"), 4);
  EXPECT_EQ(Tokens("xbcdefgh"), 0);
  StorePosition at = store_.Begin(FakeSpec(), "");
  const auto chunks = store_.Peek(Letters("abcdefgh"), &at);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[1].frames->at(0).coverage.first_layer, 0);
  EXPECT_EQ(chunks[1].frames->at(1).payload, std::vector<uint8_t>({'e', 'f', 'g', 'h'}));
  EXPECT_EQ(store_.stats().hits + store_.stats().misses, 0u) << "a look-up for a plan is no use";
}

TEST_F(Kept, WhatAWorkflowsAgentWasSentIsExpectedOfItAndOfNoOtherTenants) {
  Receive("abcdefgh", "alice");
  v1::Workflow writer, planner;
  writer.set_id("flow");
  writer.set_agent("writer");
  planner.set_id("flow");
  planner.set_agent("planner");
  planner.add_next("writer");
  codes_.Remember(writer, FakeSpec(), "alice", Letters("abcdefgh"));
  CodecSpec raw = FakeSpec();
  raw.artifact_hash.clear();
  codes_.Remember(writer, raw, "alice",
                  Letters("abcdefgh"));  // nothing of it is kept, or takes the other's place
  codes_.Expect(planner, "bob");
  EXPECT_EQ(store_.stats().expected.kept, 0u);
  codes_.Expect(planner, "alice");
  EXPECT_EQ(store_.stats().expected.kept, 2u);
  EXPECT_EQ(store_.stats().hits + store_.stats().misses, 0u);
}

// A prefill server sends stored chunks while it encodes those behind them.
TEST_F(Kept, KeepsChunksWhoseFramesWereSentInTurn) {
  const auto collector = Collect();
  const std::vector<int32_t> prompt = Letters("abcdefgh");
  const auto first = LetterFrames(prompt, 0, 4);
  const auto second = LetterFrames(prompt, 4, 8);
  collector->Add(1, Header(0, second[0]), second[0].payload);
  collector->Add(1, Header(1, first[0]), first[0].payload);
  collector->Add(1, Header(2, second[1]), second[1].payload);
  collector->Add(1, Header(3, first[1]), first[1].payload);
  collector->Keep(prompt);
  EXPECT_EQ(Tokens("abcdefgh"), 8);
}

TEST_F(Kept, KeepsNothingBeforeTheHandoffIsComplete) {
  const auto collector = Collect();
  AddBackwards("abcd", *collector);
  EXPECT_EQ(Tokens("abcd"), 0);
}

TEST_F(Kept, SaltsAndArtifactsShareNothing) {
  Receive("abcd", "alice");
  EXPECT_EQ(Tokens("abcd", "alice"), 4);
  EXPECT_EQ(Tokens("abcd", "bob"), 0);
  EXPECT_EQ(Tokens("abcd"), 0);
  CodecSpec other = FakeSpec();
  other.artifact_hash = "0102030405060708fffe";
  EXPECT_EQ(Tokens("abcd", "alice", other), 0);
}

TEST_F(Kept, FormatsWithoutAnArtifactAreNotKept) {
  CodecSpec raw = FakeSpec();
  raw.artifact_hash = "";
  EXPECT_EQ(Collect("", raw), nullptr);
  StorePosition at = store_.Begin(raw, "");
  ASSERT_TRUE(store_.Put(Letters("abcd"), 4, LetterFrames(Letters("abcd"), 0, 4), &at));
  EXPECT_EQ(Tokens("abcd", "", raw), 0);
}

TEST_F(Kept, AnotherServersFramesTakeThePlaceOfTheFirstOnes) {
  const auto collector = Collect();
  const std::vector<uint8_t> wrong(4, 'x');
  collector->Add(1, {.sequence = 0, .coverage = {0, 1, 0, 0, 4}}, wrong);
  collector->Restart(2);
  collector->Add(1, {.sequence = 0, .coverage = {0, 1, 0, 0, 4}}, wrong);  // late
  AddBackwards("abcd", *collector, 2);
  collector->Keep(Letters("abcd"));
  StorePosition at = store_.Begin(FakeSpec(), "");
  const auto chunks = store_.Peek(Letters("abcd"), &at);
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].frames->at(0).payload, std::vector<uint8_t>({'a', 'b', 'c', 'd'}));
}

TEST_F(Kept, WhatIsClearedMeanwhileIsNotKept) {
  const auto collector = Collect();
  AddBackwards("abcd", *collector);
  ASSERT_TRUE(ClearAndWait(store_).ok());
  collector->Keep(Letters("abcd"));
  EXPECT_EQ(Tokens("abcd"), 0);
}

TEST_F(Kept, AHoleEndsWhatIsKept) {
  const auto collector = Collect();
  const std::vector<int32_t> prompt = Letters("abcdefgh");
  const auto first = LetterFrames(prompt, 0, 4);
  const auto second = LetterFrames(prompt, 4, 8);
  collector->Add(1, Header(0, first[0]), first[0].payload);
  collector->Add(1, Header(1, first[1]), first[1].payload);
  collector->Add(1, Header(3, second[1]), second[1].payload);
  collector->Keep(prompt);
  EXPECT_EQ(Tokens("abcdefgh"), 4);
}

// As a decode server that plans counts on it: what is on disk only would not be found.
TEST_F(Kept, DoesNotCountOnADiskThatIsNotReadForAWhile) {
  const std::string path = ::testing::TempDir() + "/kept_codes";
  std::filesystem::remove_all(path);
  const PrefixStore::Options options{.producer = "received",
                                     .memory_bytes = kMemory,
                                     .disk = PrefixStore::Disk{.path = path, .bytes = 16 << 20},
                                     .encoders = {EncoderTag(FakeSpec())}};
  ASSERT_TRUE(PutLetters(*std::make_unique<PrefixStore>(options), "abcdefgh"));  // written when it ends
  PrefixStore store(options);
  KeptCodes codes(&store, kMemory, [] { return 0.0; });
  EXPECT_EQ(codes.Tokens(FakeSpec(), "", Letters("abcdefgh")), 8);
  for (int i = 0; i < 4; ++i) store.CountLateRead();
  EXPECT_EQ(codes.Tokens(FakeSpec(), "", Letters("abcdefgh")), 0);
  ASSERT_TRUE(PutLetters(store, "abcd"));
  EXPECT_EQ(codes.Tokens(FakeSpec(), "", Letters("abcdefgh")), 4) << "memory is no disk";
}

TEST_F(Kept, HandoffsUnderWayHoldABoundedShareOfMemory) {
  const std::vector<uint8_t> large(kMemory / 4 - 100);
  const auto first = Collect();
  first->Add(1, {.sequence = 0, .coverage = {0, 2, 0, 0, 4}}, large);
  const auto second = Collect();
  AddBackwards("efghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnop", *second);
  second->Keep(Letters("efghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnop"));
  EXPECT_EQ(Tokens("efgh"), 0) << "it did not fit beside the first";
  first->Keep(Letters("abcd"));
  EXPECT_EQ(Tokens("abcd"), 4) << "the first was not disturbed";
  Receive("efgh");
  EXPECT_EQ(Tokens("efgh"), 4) << "what they held is free again";
}

TEST_F(Kept, AHandoffThatFailedHoldsNothing) {
  const std::vector<uint8_t> large(kMemory / 4 - 100);
  const auto failed = Collect();
  failed->Add(1, {.sequence = 0, .coverage = {0, 2, 0, 0, 4}}, large);
  failed->Close();
  failed->Add(1, {.sequence = 1, .coverage = {0, 2, 0, 4, 4}}, large);  // late
  const auto other = Collect();
  other->Add(1, {.sequence = 0, .coverage = {0, 2, 0, 0, 4}}, large);
  other->Keep(Letters("abcd"));
  EXPECT_EQ(Tokens("abcd"), 4);
}

}  // namespace
}  // namespace aludel
