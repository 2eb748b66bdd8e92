#include "server/store/memory_order.h"

#include <algorithm>
#include <list>
#include <memory>
#include <random>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr int64_t kTokens = 100;
constexpr StoreTag kFormat = {1};

// A plane of so many bytes behind its length.
std::vector<uint8_t> Planes(int planes, int bytes) {
  std::vector<uint8_t> payload;
  for (int plane = 0; plane < planes; ++plane) {
    payload.push_back(static_cast<uint8_t>(bytes));
    payload.insert(payload.end(), bytes, static_cast<uint8_t>(plane));
  }
  return payload;
}

class MemoryOrderTest : public testing::Test {
 protected:
  StoreIndex::Node* Chunk(uint32_t token_begin, uint8_t planes = 0) {
    StoreIndex::Node& node = nodes_.emplace_back();
    node.key[0] = static_cast<uint8_t>(nodes_.size());
    node.key[1] = static_cast<uint8_t>(nodes_.size() >> 8);
    node.encoder = kFormat;
    node.token_begin = token_begin;
    node.tokens = kTokens;
    node.memory = std::make_shared<std::vector<StoredFrame>>(
        std::vector<StoredFrame>{{{}, Planes(planes == 0 ? 4 : planes, 100)}});
    node.memory_bytes = node.memory->front().payload.size();
    node.memory_planes = planes;
    return &node;
  }
  StoreIndex::Node* NextOf(MemoryOrder& order, double now, const MemoryOrder::Costs& costs = {}) {
    order.Begin(costs, now);
    StoreIndex::Node* const node = order.Next(now).node;
    order.End(0, now);
    return node;
  }

  std::list<StoreIndex::Node> nodes_;
};

TEST_F(MemoryOrderTest, WhatIsUsedLeastGoesFirstAndOldUsesFade) {
  MemoryOrder order({});
  StoreIndex::Node* const often = Chunk(0);
  StoreIndex::Node* const once = Chunk(0);
  for (int i = 0; i < 3; ++i) order.Used(often, 0, 0);
  order.Used(once, 0, 1);
  order.Add(often, 1);
  order.Add(once, 1);
  EXPECT_EQ(NextOf(order, 1), once);
  // Three uses count less than one after two half-lives.
  order.Used(once, 0, 2 * MemoryOrder::kHalfLife);
  EXPECT_EQ(NextOf(order, 2 * MemoryOrder::kHalfLife), often);
}

TEST_F(MemoryOrderTest, WhatComesBackCountsItsUsesBeforeItWent) {
  MemoryOrder order({});
  StoreIndex::Node* const gone = Chunk(0);
  for (int i = 0; i < 2; ++i) order.Used(gone, 0, 0);
  order.Add(gone, 0);
  order.Remove(gone, 1);
  StoreIndex::Node* const twice = Chunk(0);
  for (int i = 0; i < 2; ++i) order.Used(twice, 0, 1);
  order.Add(twice, 1);
  StoreIndex::Node* const back = Chunk(0);  // another node of the same chunk
  back->key = gone->key;
  order.Used(back, 0, 1);
  order.Add(back, 1);
  EXPECT_EQ(NextOf(order, 1), twice);
  // What is cleared is forgotten.
  order.Clear();
  back->uses = {};
  back->heap = twice->heap = nullptr;
  order.Used(back, 0, 1);
  order.Add(back, 1);
  order.Add(twice, 1);
  EXPECT_EQ(NextOf(order, 1), back);
}

TEST_F(MemoryOrderTest, OfChunksUsedAlikeTheLastOfThePromptGoesFirst) {
  MemoryOrder order({});
  std::vector<StoreIndex::Node*> chunks;
  for (uint32_t i = 0; i < 20; ++i) chunks.push_back(Chunk(i * kTokens));
  for (StoreIndex::Node* const chunk : chunks) {
    order.Used(chunk, 0, 5);
    order.Add(chunk, 5);
  }
  for (size_t left = chunks.size(); left > 0; --left) {
    StoreIndex::Node* const next = NextOf(order, 6);
    EXPECT_EQ(next, chunks[left - 1]);
    order.Remove(next, 6);
  }
  EXPECT_EQ(NextOf(order, 6), nullptr);
}

TEST_F(MemoryOrderTest, WhatTheDiskHasTooGoesBeforeWhatItLacks) {
  MemoryOrder order({});
  StoreIndex::Node* const often = Chunk(0);
  StoreIndex::Node* const once = Chunk(0);
  for (int i = 0; i < 5; ++i) order.Used(often, 0, 1);
  order.Used(once, 0, 1);
  order.Add(often, 1);
  order.Add(once, 1);
  EXPECT_EQ(NextOf(order, 1), once);
  often->disk.block = 1;
  order.Moved(often, 1);
  EXPECT_EQ(NextOf(order, 1), often);
  // Reading four bytes a token takes half as long as computing it, and five uses lose more than one does.
  EXPECT_EQ(NextOf(order, 1, {.prefill_seconds = 1e-4, .disk_bytes_per_second = 8e4}), once);
  // Nor is it worth much to be on a disk that drops it before it is used again.
  EXPECT_EQ(NextOf(order, 1, {.disk_seconds = 4 * MemoryOrder::kHalfLife}), often);
  EXPECT_EQ(NextOf(order, 1, {.disk_seconds = MemoryOrder::kHalfLife / 4}), once);
}

TEST_F(MemoryOrderTest, CutsForThoseWhoAskForFewerPlanesAndDropsForTheRest) {
  MemoryOrder order({{kFormat, 2}, {kFormat, 0}});
  StoreIndex::Node* const chunk = Chunk(0);
  order.Used(chunk, 0, 0);
  order.Add(chunk, 0);
  order.Begin({}, 0);
  EXPECT_EQ(order.Next(0).planes, 0) << "only the whole format was asked for";
  order.End(0, 0);
  // Nine in ten ask for two planes: half of the bytes are worth a tenth.
  for (int i = 0; i < 9; ++i) order.Used(chunk, 2, 0);
  order.Begin({}, 0);
  const MemoryOrder::Move move = order.Next(0);
  EXPECT_EQ(move.node, chunk);
  EXPECT_EQ(move.planes, 2);
  order.End(0, 0);
}

TEST_F(MemoryOrderTest, WhatIsPassedOverComesAgainInTheNextRow) {
  MemoryOrder order({});
  StoreIndex::Node* const first = Chunk(0);
  StoreIndex::Node* const second = Chunk(0);
  order.Used(first, 0, 0);
  order.Used(second, 0, 60);
  order.Add(first, 60);
  order.Add(second, 60);
  order.Begin({}, 60);
  EXPECT_EQ(order.Next(60).node, first);
  order.PassOver(first, 60, 60);
  EXPECT_EQ(order.Next(60).node, second);
  order.End(0, 60);
  EXPECT_EQ(NextOf(order, 60), first);
}

TEST_F(MemoryOrderTest, WhatIsPassedOverUntilLaterIsNotSeenBeforeUnlessItChanges) {
  MemoryOrder order({});
  std::vector<StoreIndex::Node*> chunks;
  for (int i = 0; i < 4; ++i) {
    chunks.push_back(Chunk(0));
    order.Used(chunks.back(), 0, i * 60);
    order.Add(chunks.back(), 240);
  }
  order.Begin({}, 240);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(order.Next(240).node, chunks[i]);
    order.PassOver(chunks[i], 300 + i, 240);
  }
  order.End(0, 240);
  EXPECT_EQ(NextOf(order, 250), chunks[3]);
  order.Moved(chunks[2], 250);
  EXPECT_EQ(NextOf(order, 250), chunks[2]);
  order.Remove(chunks[0], 260);  // gone: it does not come back
  EXPECT_EQ(NextOf(order, 300), chunks[2]);
  EXPECT_EQ(NextOf(order, 301), chunks[1]);
}

TEST_F(MemoryOrderTest, ManyUsesCostOneLookLittleAndTheLeastIsFoundInTheEnd) {
  constexpr int kChunks = 1000;
  MemoryOrder order({});
  for (int i = 0; i < kChunks; ++i) {
    order.Used(Chunk(0), 0, 0);
    order.Add(&nodes_.back(), 0);
  }
  // All keys are too low now, those of the chunks that a heap looks at first the most.
  double now = 0;
  for (StoreIndex::Node& node : nodes_) order.Used(&node, 0, 1e4 - ++now);
  StoreIndex::Node* const least = &nodes_.back();
  EXPECT_NE(NextOf(order, 1e4), least) << "not all keys were put right";
  for (int i = 0; i < kChunks / 32; ++i) NextOf(order, 1e4);
  EXPECT_EQ(NextOf(order, 1e4), least);
}

TEST_F(MemoryOrderTest, TheGapIsWhatTheLastMoveTookTooMuch) {
  MemoryOrder order({});
  std::vector<StoreIndex::Node*> chunks;
  for (int i = 0; i < 11; ++i) {
    chunks.push_back(Chunk(0));
    order.Used(chunks.back(), 0, 0);
    order.Add(chunks.back(), 0);
  }
  order.Begin({}, 0);
  const MemoryOrder::Move move = order.Next(0);
  order.Remove(move.node, 0);
  // Half of the chunk need not have gone: half of one, of ten and a half.
  EXPECT_NEAR(order.End(0.5 * static_cast<double>(move.node->memory_bytes), 0), 0.5 / 10.5, 1e-6);
}

// Against an order of all keys at each step.
TEST_F(MemoryOrderTest, AgreesWithASortOfAll) {
  std::mt19937 random(11);
  MemoryOrder order({});
  std::list<StoreIndex::Node*> in;
  double now = 0;
  for (int step = 0; step < 3000; ++step) {
    now += static_cast<double>(random() % 100);
    const uint32_t what = random() % 10;
    if (what < 3 || in.empty()) {
      in.push_back(Chunk(random() % 1000));
      order.Used(in.back(), 0, now);
      order.Add(in.back(), now);
    } else if (what < 8) {
      order.Used(*std::next(in.begin(), random() % in.size()), 0, now);
    } else {
      const auto least = std::min_element(in.begin(), in.end(), [](const auto* a, const auto* b) {
        return UtilityHeap::KeyOf(*a) < UtilityHeap::KeyOf(*b);
      });
      StoreIndex::Node* const next = NextOf(order, now);
      ASSERT_EQ(UtilityHeap::KeyOf(*next), UtilityHeap::KeyOf(**least)) << step;
      order.Remove(next, now);
      in.remove(next);
    }
  }
}

}  // namespace
}  // namespace aludel
