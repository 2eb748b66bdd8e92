#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace aludel {
namespace {

// Full of one byte until it goes.
class Piece {
 public:
  Piece(HostSlabs* slabs, size_t bytes, uint8_t value)
      : memory_(slabs->Allocate(bytes)), bytes_(bytes), value_(value) {
    std::memset(memory_.get(), value, bytes);
  }
  const char* begin() const { return static_cast<const char*>(memory_.get()); }
  bool IsWhole() const {
    // All are as the first, which is the value.
    return bytes_ == 0 ||
           (static_cast<uint8_t>(*begin()) == value_ && std::memcmp(begin(), begin() + 1, bytes_ - 1) == 0);
  }

 private:
  std::shared_ptr<void> memory_;
  size_t bytes_;
  uint8_t value_;
};

TEST(HostSlabs, PiecesLieBehindOneAnother) {
  HostSlabs slabs;
  const Piece first(&slabs, 100'000, 1), second(&slabs, 64, 2), third(&slabs, 1, 3);
  EXPECT_EQ(second.begin() - first.begin(), 100'032);
  EXPECT_EQ(third.begin() - second.begin(), 64);
}

// Memory that the heap has had keeps its small pages, which are read more slowly.
TEST(HostSlabs, AreNewToTheProcess) {
  constexpr size_t kSlab = size_t{4} << 20, kPage = 4096;
  // A heap that does not ask the kernel for blocks of a slab's size, and has some of them.
  std::free(std::malloc(4 * kSlab));
  std::vector<void*> used;
  for (int i = 0; i < 4; ++i) used.push_back(std::memset(std::malloc(kSlab), 1, kSlab));
  const std::unique_ptr<void, decltype(&std::free)> last(std::malloc(kPage), std::free);  // else they go back
  for (void* block : used) std::free(block);
  HostSlabs slabs;
  for (int i = 0; i < 3; ++i) {
    const std::shared_ptr<void> slab = slabs.Allocate(kSlab);
    std::vector<unsigned char> resident(kSlab / kPage);
    ASSERT_EQ(mincore(slab.get(), kSlab, resident.data()), 0);
    EXPECT_EQ(std::count(resident.begin(), resident.end(), 0), static_cast<int64_t>(resident.size()));
  }
}

TEST(HostSlabs, APieceOfAnySizeStaysWhileItsNeighborsComeAndGo) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  std::optional<HostSlabs> slabs(std::in_place);
  std::vector<Piece> pieces;
  for (int i = 0; i < 150; ++i) {
    // Few are larger than a slab.
    const size_t bytes = random() % (random() % 50 == 0 ? size_t{9} << 20 : size_t{600} << 10);
    pieces.emplace_back(&*slabs, bytes, static_cast<uint8_t>(random()));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(pieces.back().begin()) % 64, 0);
    while (pieces.size() > 20 || (!pieces.empty() && random() % 8 == 0)) {
      const auto gone = std::next(pieces.begin(), static_cast<int64_t>(random() % pieces.size()));
      ASSERT_TRUE(gone->IsWhole());
      std::swap(*gone, pieces.back());
      pieces.pop_back();
    }
  }
  slabs.reset();
  for (const Piece& piece : pieces) EXPECT_TRUE(piece.IsWhole());
}

TEST(HostSlabs, ThreadsShareThem) {
  HostSlabs slabs;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&slabs, t] {
      std::vector<Piece> pieces;
      for (int i = 0; i < 200; ++i) {
        pieces.emplace_back(&slabs, 1000 + 37 * i, static_cast<uint8_t>(t));
        if (i % 3 == 0) pieces.erase(pieces.begin());
      }
      for (const Piece& piece : pieces) EXPECT_TRUE(piece.IsWhole());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace aludel
