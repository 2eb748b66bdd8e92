#include "tests/kernels/cuda/attention/simt_warpgroup.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/attention/warpgroup.cuh"
#include "kernels/cuda/attention/wgmma_index.h"

#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/tensor.h"

namespace aludel::cuda {
namespace {

// The simulator itself: what it is worth depends on what it notices. One warpgroup multiplies A [64, 64] by
// B in the ways that the attention kernel does. Where elements lie is said here as CUTLASS says it, in CuTe's
// layouts (NVIDIA/cutlass, include/cute/atom/mma_traits_sm90_gmma.hpp and arch/mma_sm90_desc.hpp), so that
// they are a second source beside the PTX ISA, from which the simulator was written.

constexpr int kRows = 64;
constexpr int kDim = 64;  // one panel
constexpr int kColumns = 128;
constexpr int kABytes = kRows * kDim * 2;
constexpr int kBBytes = kColumns * kDim * 2;

using Matrix = std::vector<Bf16>;  // [rows, kDim]

Matrix RandomMatrix(int rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Matrix matrix(rows * kDim);
  for (Bf16& value : matrix) value = ToBf16(normal(random));
  return matrix;
}

// By the whole block, fenced; the caller meets the others afterwards.
template <int kCount>
void StoreTile(const Matrix& matrix, char* tile) {
  for (int c = threadIdx.x; c < kCount * 8; c += kWarpgroupThreads) {
    uint4 value;
    std::memcpy(&value, &matrix[c * 8], sizeof(value));
    StoreShared(tile + SwizzledByte<kCount>(c / 8, c % 8), value);
  }
}

// A mode of a CuTe layout: the digits of a number over `shape`, lowest first, times `stride`.
struct Mode {
  std::vector<int> shape, stride;

  int operator()(int i) const {
    int at = 0;
    for (size_t digit = 0; digit < shape.size(); i /= shape[digit++]) at += i % shape[digit] * stride[digit];
    return at;
  }
};
// CuTe's Swizzle<bits, 4, 3> of a byte's number.
int Swizzle(int bits, int byte) { return byte ^ ((byte >> 7 & ((1 << bits) - 1)) << 4); }

// Element i of a thread's share of a matrix [64, columns]: of D (CLayout_64xN), or of A (ALayout_64x16).
struct Place {
  int row, column;
};
Place PlaceOf(int thread, int i) {
  static const Mode threads{{4, 8, 4}, {128, 1, 16}}, values{{2, 2, 16}, {64, 8, 512}};
  const int element = threads(thread) + values(i);
  return {element % 64, element / 64};
}

class SimtWarpgroup : public ::testing::Test {
 protected:
  // In a process that forks with fibers the race detector no longer sees what orders them.
  SimtWarpgroup() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // `body` runs with A and B in shared memory.
  template <typename Body>
  void Run(const Body& body) {
    simt::Launch({}, {kWarpgroupThreads}, kABytes + kBBytes + 64, 1, [&](char* shared) {
      StoreTile<kRows>(a_, shared);
      StoreTile<kColumns>(b_, shared + kABytes);
      FenceProxyAsync();
      __syncthreads();
      body(shared, RowsByDimensions(SharedAddress(shared)), shared + kABytes);
    });
  }

  Matrix a_ = RandomMatrix(kRows, 1);
  Matrix b_ = RandomMatrix(kColumns, 2);
};

TEST_F(SimtWarpgroup, MultipliesRowsByDimensions) {
  Run([&](char*, uint64_t a, char* b_tile) {
    const uint64_t b = RowsByDimensions(SharedAddress(b_tile));
    float d[16][4] = {};
    WgmmaFence(d);
    for (int k = 0; k < 4; ++k) {
      WgmmaShared(d, a + DimensionStep<kRows>(k), b + DimensionStep<kColumns>(k), k > 0);
    }
    WgmmaCommit();
    EXPECT_TRUE(std::isnan(d[3][1]));
    WgmmaWait<0>(d);
    for (int i = 0; i < 64; ++i) {
      const Place at = PlaceOf(static_cast<int>(threadIdx.x), i);
      double expected = 0;
      for (int k = 0; k < kDim; ++k) {
        expected += double{ToFloat(a_[at.row * kDim + k])} * ToFloat(b_[at.column * kDim + k]);
      }
      EXPECT_NEAR(d[i / 4][i % 4], expected, 1e-4);
    }
  });
}

// A of ones in registers: the sums of B's columns, 16 rows at a time.
TEST_F(SimtWarpgroup, MultipliesDimensionsByRows) {
  Run([&](char*, uint64_t, char* b_tile) {
    const uint64_t b = DimensionsByRows<kColumns>(SharedAddress(b_tile));
    const uint32_t one = PackBf16(1.0f, 1.0f);
    uint32_t ones[1][4] = {{one, one, one, one}};
    float d[8][4] = {};
    for (int step = 0; step < kColumns / 16; ++step) {
      float before[8][4];
      std::memcpy(before, d, sizeof(d));
      WgmmaFence(d, ones);
      WgmmaRegisters(d, ones[0], b + RowStep(step));
      WgmmaCommit();
      WgmmaWait<0>(d);
      for (int i = 0; i < 32; ++i) {
        double expected = before[i / 4][i % 4];
        for (int k = step * 16; k < step * 16 + 16; ++k) {
          expected += ToFloat(b_[k * kDim + PlaceOf(static_cast<int>(threadIdx.x), i).column]);
        }
        EXPECT_NEAR(d[i / 4][i % 4], expected, 1e-4);
      }
    }
  });
}

// What lies where a canonical layout wants it.
struct Canonical {
  Mode outer, summed;  // of M or N and of what is summed over, in elements
  int swizzle_bits;
  uint64_t descriptor;  // but for the address

  std::vector<Bf16> Image(const std::vector<Bf16>& matrix, int bytes) const {  // of [rows, 16]
    std::vector<Bf16> image(bytes / sizeof(Bf16));
    for (size_t i = 0; i < matrix.size(); ++i) {
      const int element = outer(static_cast<int>(i / 16)) + summed(static_cast<int>(i % 16));
      image[Swizzle(swizzle_bits, element * 2) / 2] = matrix[i];
    }
    return image;
  }
};

// The table above make_gmma_desc for the widest strides in use, with T = 8 elements of 16 bytes and `width`
// of these to a swizzle's row.
Canonical CanonicalLayout(int width, bool k_major) {
  constexpr int kT = 8;
  static constexpr uint64_t kTypes[] = {0, 0, 3, 0, 2, 0, 0, 0, 1};  // bits 62-63, of each width
  const int bits = width == 8 ? 3 : width / 2;
  const int stride = 2 * width * 64, leading = 16 * stride;  // elements
  const uint64_t descriptor =
      kTypes[width] << 62 | uint64_t(stride / kT) << 32 | uint64_t(leading / kT) << 16;
  if (k_major) {
    return {{{8, 16}, {width * kT, stride}}, {{kT, 2}, {1, width == 1 ? leading : kT}}, bits, descriptor};
  }
  if (width == 1) return {{{kT, 16}, {1, stride}}, {{8, 2}, {kT, leading}}, bits, descriptor};
  return {{{kT, width, 16}, {1, kT, leading}}, {{8, 2}, {width * kT, stride}}, bits, descriptor};
}

// One product of each kind, its operands in shared memory in every layout that there is.
TEST(SimtDescriptor, IsReadAsCutlassWritesIt) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<Bf16> a(64 * 16), b(128 * 16);
  for (Bf16& value : a) value = ToBf16(normal(random));
  for (Bf16& value : b) value = ToBf16(normal(random));
  constexpr int kImageBytes = 96 << 10;
  for (const bool k_major : {true, false}) {
    for (const int width : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << width << " pieces wide, " << (k_major ? "K-major" : "MN-major"));
      const Canonical layout = CanonicalLayout(width, k_major);
      std::vector<Bf16> images = layout.Image(a, kImageBytes);
      const std::vector<Bf16> b_image = layout.Image(b, kImageBytes);
      images.insert(images.end(), b_image.begin(), b_image.end());
      simt::Launch({}, {kWarpgroupThreads}, 2 * kImageBytes, 1, [&](char* shared) {
        for (int at = threadIdx.x * 16; at < 2 * kImageBytes; at += kWarpgroupThreads * 16) {
          uint4 piece;
          std::memcpy(&piece, &images[at / sizeof(Bf16)], sizeof(piece));
          StoreShared(shared + at, piece);
        }
        FenceProxyAsync();
        __syncthreads();
        const uint64_t a_matrix = layout.descriptor | SharedAddress(shared) >> 4;
        const uint64_t b_matrix = layout.descriptor | SharedAddress(shared + kImageBytes) >> 4;
        const int thread = static_cast<int>(threadIdx.x);
        uint32_t a_share[1][4];
        for (int i = 0; i < 4; ++i) {
          const Place at = PlaceOf(thread, 2 * i);
          std::memcpy(&a_share[0][i], &a[at.row * 16 + at.column], sizeof(a_share[0][i]));
        }
        float d[16][4] = {};
        WgmmaFence(d, a_share);
        if (k_major) {
          WgmmaShared(d, a_matrix, b_matrix, false);
        } else {
          WgmmaRegisters(d, a_share[0], b_matrix);
        }
        WgmmaCommit();
        WgmmaWait<0>(d);
        for (int i = 0; i < 64; ++i) {
          const Place at = PlaceOf(thread, i);
          double expected = 0;
          for (int k = 0; k < 16; ++k) {
            expected += double{ToFloat(a[at.row * 16 + k])} * ToFloat(b[at.column * 16 + k]);
          }
          ASSERT_NEAR(d[i / 4][i % 4], expected, 1e-4) << "row " << at.row << " column " << at.column;
        }
      });
    }
  }
}

// One product of A and B, with something wrong.
struct Mistake {
  bool fence = true;
  bool change = false;  // registers, after the fence
  bool wait = true;
  bool name = true;        // the sums, in the wait
  bool overwrite = false;  // B, by a copy that begins before the wait
  uint64_t a = 0;          // added to A's descriptor
};

class SimtWarpgroupDeathTest : public SimtWarpgroup {
 protected:
  void Multiply(const Mistake& mistake) {
    alignas(16) static const char elsewhere[16] = {};
    Run([&](char*, uint64_t a, char* b_tile) {
      float d[16][4] = {};
      if (mistake.fence) WgmmaFence(d);
      if (mistake.change) d[15][3] = 1.0f;
      WgmmaShared(d, a + mistake.a, RowsByDimensions(SharedAddress(b_tile)), true);
      WgmmaCommit();
      if (mistake.overwrite && threadIdx.x == 0) CpAsync16(b_tile, elsewhere, true);
      float other[1][4] = {};
      if (mistake.wait && mistake.name) WgmmaWait<0>(d);
      if (mistake.wait && !mistake.name) WgmmaWait<0>(other);
    });
  }
};

TEST_F(SimtWarpgroupDeathTest, NoticesWrongUseOfProducts) {
  Multiply({});
  EXPECT_DEATH(Multiply({.fence = false}), "have not been fenced");
  EXPECT_DEATH(Multiply({.change = true}), "have changed since wgmma.fence");
  EXPECT_DEATH(Multiply({.wait = false}), "products that it has not waited for");
  EXPECT_DEATH(Multiply({.name = false}), "does not name");
  EXPECT_DEATH(Multiply({.overwrite = true}), "has changed under a product|data race");
  EXPECT_DEATH(Multiply({.a = 1 << 13}), "outside of shared memory");
}

// When another warp writes to an operand: what is there already, which only the race detector notices.
enum class Write { kAtOnce, kBeforeTheWait, kBehindIt };

class WgmmaOperands : public SimtWarpgroup {
 protected:
  void Multiply(Write write) {
    simt::Launch({}, {kWarpgroupThreads + 32}, kABytes + kBBytes + 64, 1, [&](char* shared) {
      char* const b_tile = shared + kABytes;
      auto* const read = reinterpret_cast<uint64_t*>(b_tile + kBBytes);
      const bool multiplies = threadIdx.x < kWarpgroupThreads;
      if (threadIdx.x == 0) BarrierInit(read, 4);
      if (multiplies) {
        StoreTile<kRows>(a_, shared);
        StoreTile<kColumns>(b_, b_tile);
        FenceProxyAsync();
      }
      __syncthreads();
      if (!multiplies) {
        if (write != Write::kAtOnce) BarrierWait(read, 0);
        volatile char& last = b_tile[kBBytes - 1];
        if (threadIdx.x == kWarpgroupThreads) last = last;
        return;
      }
      const auto arrive = [&] {
        if (threadIdx.x % 32 == 0) BarrierArrive(read);
      };
      float d[16][4] = {};
      WgmmaFence(d);
      for (int k = 0; k < 4; ++k) {
        WgmmaShared(d, RowsByDimensions(SharedAddress(shared)) + DimensionStep<kRows>(k),
                    RowsByDimensions(SharedAddress(b_tile)) + DimensionStep<kColumns>(k), k > 0);
      }
      WgmmaCommit();
      if (write == Write::kBeforeTheWait) arrive();
      WgmmaWait<0>(d);
      if (write != Write::kBeforeTheWait) arrive();
    });
  }
};

TEST_F(WgmmaOperands, MayBeWrittenBehindTheWait) { Multiply(Write::kBehindIt); }

#if defined(__SANITIZE_THREAD__)

using WgmmaOperandsDeathTest = WgmmaOperands;

TEST_F(WgmmaOperandsDeathTest, AreReadFromTheBeginningToTheWait) {
  EXPECT_DEATH(Multiply(Write::kAtOnce), "data race");
  EXPECT_DEATH(Multiply(Write::kBeforeTheWait), "data race");
}

#endif

TEST_F(SimtWarpgroupDeathTest, NoticesThatWarpsDisagree) {
  EXPECT_DEATH(Run([&](char*, uint64_t a, char* b_tile) {
                 float d[16][4] = {};
                 WgmmaFence(d);
                 WgmmaShared(d, a, RowsByDimensions(SharedAddress(b_tile)), threadIdx.x < 64);
                 WgmmaCommit();
                 WgmmaWait<0>(d);
               }),
               "warps of a warpgroup begin different products");
}

TEST_F(SimtWarpgroupDeathTest, NoticesWhoWaitsForEver) {
  EXPECT_DEATH(Run([&](char* shared, uint64_t, char*) {
                 auto* const barrier = reinterpret_cast<uint64_t*>(shared + kABytes + kBBytes);
                 if (threadIdx.x == 0) BarrierInit(barrier, 2);
                 __syncthreads();
                 if (threadIdx.x == 0) BarrierArrive(barrier);
                 BarrierWait(barrier, 1);  // over from the beginning
                 BarrierWait(barrier, 0);  // lacks an arrival
               }),
               "waits for ever for parity 0");
  EXPECT_DEATH(Run([&](char*, uint64_t, char*) {
                 if (threadIdx.x < 64) NumberedSync<kWarpgroupThreads>(1);
               }),
               "waits for ever for numbered barrier 1");
  EXPECT_DEATH(Run([&](char*, uint64_t, char*) {
                 if (threadIdx.x < 64) NumberedArrive<kWarpgroupThreads>(1);
               }),
               "still has arrivals");
}

// What has been written without a fence, or fenced by somebody else, or before the copy has come, a product
// does not see.
TEST_F(SimtWarpgroup, ShowsProductsOnlyWhatItsWriterHasFenced) {
  enum class Fence { kNone, kOfOthers, kEarly, kOwn };
  for (const auto& [copied, fence] : {std::pair(false, Fence::kNone),
                                      {false, Fence::kOfOthers},
                                      {false, Fence::kOwn},
                                      {true, Fence::kNone},
                                      {true, Fence::kOfOthers},
                                      {true, Fence::kEarly},
                                      {true, Fence::kOwn}}) {
    const bool fenced = fence == Fence::kOwn;
    Run([&](char* shared, uint64_t a, char* b_tile) {
      if (threadIdx.x == 0 && !copied) StoreShared(shared, uint4{});
      if (threadIdx.x == 0 && copied) {
        CpAsync16(shared, nullptr, false);
        CpAsyncCommit();
        if (fence == Fence::kEarly) FenceProxyAsync();
        CpAsyncWait<0>();
      }
      if (threadIdx.x == 0 ? fenced : fence == Fence::kOfOthers) FenceProxyAsync();
      __syncthreads();
      float d[16][4] = {};
      WgmmaFence(d);
      WgmmaShared(d, a, RowsByDimensions(SharedAddress(b_tile)), false);
      WgmmaCommit();
      WgmmaWait<0>(d);
      if (threadIdx.x < 4) {
        EXPECT_EQ(std::isnan(d[0][0]), !fenced);
      }
      EXPECT_FALSE(std::isnan(d[0][2]));  // eight rows further down
    });
  }
}

}  // namespace
}  // namespace aludel::cuda
