#include "kernels/cuda/return_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace aludel::cuda {
namespace {

constexpr size_t kBytes = 1000;

class ReturnRingTest : public ::testing::Test {
 protected:
  ReturnRingTest() { ring_.SetMemory(pinned_.data()); }

  std::vector<char> pinned_ = std::vector<char>(kBytes);
  ReturnRing ring_{kBytes};
};

// A GPU that copies results late, in their order: each is written to its place at the latest moment.
TEST_F(ReturnRingTest, EveryResultArrivesWhole) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  struct Result {
    std::vector<char> bytes, host;
    char* place;
  };
  std::deque<Result> under_way;  // addresses stay
  uint64_t copied = 0, delivered = 0;
  int refused = 0, wrapped = 0;
  const char* before = pinned_.data();
  for (int i = 0; i < 20000; ++i) {
    const size_t size = 1 + random() % (random() % 4 == 0 ? kBytes : 200);
    Result& result = under_way.emplace_back();
    result.host.assign(size, 0);
    result.place = ring_.Add(result.host.data(), size);
    if (result.place == nullptr) {
      size_t held = 0;
      for (const Result& other : under_way) held += other.bytes.size();
      EXPECT_GT(held, 0u) << "an empty ring has room for all of " << kBytes;
      under_way.pop_back();
      ++refused;
    } else {
      ASSERT_GE(result.place, pinned_.data());
      ASSERT_LE(result.place + size, pinned_.data() + kBytes);
      wrapped += result.place < before;
      before = result.place;
      for (size_t at = 0; at < size; ++at) result.bytes.push_back(static_cast<char>(random()));
    }
    // What the GPU has copied by now; all it wrote before stays as it was until it is delivered.
    const uint64_t last = delivered + random() % (under_way.size() + 1);
    for (; copied < last; ++copied) {
      const Result& next = under_way[copied - delivered];
      std::copy(next.bytes.begin(), next.bytes.end(), next.place);
    }
    ASSERT_EQ(ring_.added(), delivered + under_way.size());
    ring_.Deliver(last);
    for (; delivered < last; ++delivered) {
      ASSERT_EQ(under_way.front().host, under_way.front().bytes);
      under_way.pop_front();
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(wrapped, 1000);
}

TEST_F(ReturnRingTest, DeliversOnceAndForgets) {
  std::vector<char> first(10), second(10);
  char* const place = ring_.Add(first.data(), first.size());
  std::fill_n(place, 10, 'a');
  std::fill_n(ring_.Add(second.data(), second.size()), 10, 'b');
  ring_.Deliver(1);
  EXPECT_EQ(first, std::vector<char>(10, 'a'));
  EXPECT_EQ(second, std::vector<char>(10, 0));
  first.assign(10, 'c');
  ring_.Deliver(1);
  EXPECT_EQ(first, std::vector<char>(10, 'c'));
  ring_.Forget();
  ring_.Deliver(ring_.added());
  EXPECT_EQ(second, std::vector<char>(10, 0));
  EXPECT_EQ(ring_.Add(first.data(), kBytes), pinned_.data()) << "all of it is free again";
  EXPECT_EQ(ring_.Add(second.data(), 1), nullptr);
}

}  // namespace
}  // namespace aludel::cuda
