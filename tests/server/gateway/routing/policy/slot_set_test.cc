#include "server/gateway/routing/policy/slot_set.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr size_t kSlots = 200;

std::set<size_t> Held(const SlotSet& slots, std::vector<uint64_t>* seen) {
  std::set<size_t> held;
  slots.AddTo(seen, [&](size_t slot) { EXPECT_TRUE(held.insert(slot).second); });
  return held;
}

TEST(SlotSet, HoldsWhatWasAddedAndNotRemoved) {
  std::mt19937 random(1);
  // Few: without bits, and with them again once there were more.
  for (const size_t most : {2, 3, 4, 50}) {
    SlotSet slots;
    std::set<size_t> expected;
    for (int step = 0; step < 2000; ++step) {
      const size_t slot = random() % kSlots;
      if (!expected.contains(slot) && expected.size() < most) {
        slots.Add(slot);
        expected.insert(slot);
      } else {
        EXPECT_EQ(slots.Remove(slot), expected.erase(slot) == 1);
        if (!expected.empty() && random() % 2 == 0) {
          EXPECT_TRUE(slots.Remove(*expected.begin()));
          expected.erase(expected.begin());
        }
      }
      std::vector<uint64_t> seen((kSlots + SlotSet::kWordBits - 1) / SlotSet::kWordBits);
      EXPECT_EQ(Held(slots, &seen), expected);
      EXPECT_EQ(slots.empty(), expected.empty());
    }
  }
}

TEST(SlotSet, TellsOnlyOfSlotsThatWereNotSeen) {
  for (const size_t more : {0, 10}) {
    SlotSet slots;
    for (const size_t slot : {3, 70}) slots.Add(slot);
    for (size_t slot = 100; slot < 100 + more; ++slot) slots.Add(slot);
    std::vector<uint64_t> seen((kSlots + SlotSet::kWordBits - 1) / SlotSet::kWordBits);
    seen[1] = uint64_t{1} << (70 - 64);
    const std::set<size_t> fresh = Held(slots, &seen);
    EXPECT_TRUE(fresh.contains(3));
    EXPECT_FALSE(fresh.contains(70));
    EXPECT_EQ(fresh.size(), 1 + more);
    EXPECT_TRUE(Held(slots, &seen).empty());
  }
}

}  // namespace
}  // namespace aludel
