#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/latents.cuh"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"
#include "tests/kernels/latent_problem.h"

namespace aludel::cuda {
namespace {

// The kernels' own source, run on the host by simt.h, against the document's definition.
class LatentKernelTest : public ::testing::Test {
 protected:
  LatentKernelTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  void Run(const LatentArgs& args, void (*kernel)(const LatentArgs&, LatentTile*)) {
    const auto columns = static_cast<unsigned>((args.columns + kLatentColumns - 1) / kLatentColumns);
    const auto tokens = static_cast<unsigned>((args.tokens + kLatentTokens - 1) / kLatentTokens);
    simt::Launch({columns, tokens}, {kLatentThreads}, sizeof(LatentTile), random_(),
                 [&](char* shared) { kernel(args, reinterpret_cast<LatentTile*>(shared)); });
  }

  std::mt19937_64 random_;
};

TEST_F(LatentKernelTest, PacksTheBytesOfTheDefinition) {
  for (const int64_t tokens : {1, 3, 8, 127, 128, 129, 300}) {
    for (const int columns : {1, 5, 32, 33, 70}) {
      const LatentProblem problem(tokens, columns, random_);
      const AlignedCopy<float> z(problem.z);
      std::vector<uint8_t> bytes(problem.bytes.size(), 0xa5);
      const LatentArgs args{z.data(), /*narrow=*/false,      problem.stride, tokens,
                            columns,  problem.planes.data(), bytes.data(),   0,
                            2.0f};
      Run(args, PackLatentTile);
      ASSERT_EQ(bytes, problem.bytes) << tokens << " tokens, " << columns << " latents";
    }
  }
}

TEST_F(LatentKernelTest, UnpacksFromAnyToken) {
  for (const int64_t tokens : {1, 9, 128, 301}) {
    const int columns = 37;
    const LatentProblem problem(tokens, columns, random_);
    const AlignedCopy<uint8_t> bytes(problem.bytes);
    for (const int64_t first : {int64_t{0}, tokens / 3, tokens - 1}) {
      std::vector<float> wide(problem.z.size(), std::numeric_limits<float>::quiet_NaN());
      std::vector<Bf16> narrow(problem.z.size(), ToBf16(std::numeric_limits<float>::quiet_NaN()));
      LatentArgs args{wide.data(), /*narrow=*/false,      problem.stride, tokens - first,
                      columns,     problem.planes.data(), bytes.data(),   first,
                      0.3f};
      Run(args, UnpackLatentTile);
      args.z = narrow.data();
      args.narrow = true;
      Run(args, UnpackLatentTile);
      for (int64_t t = first; t < tokens; ++t) {
        for (int i = 0; i < columns; ++i) {
          const int64_t at = (t - first) * problem.stride + i;
          const float z = 0.3f * static_cast<float>(problem.code(t, i));
          ASSERT_EQ(wide[at], z) << "token " << t << " from " << first << ", latent " << i;
          ASSERT_EQ(ToFloat(narrow[at]), RoundToBf16(z)) << "token " << t << " from " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace aludel::cuda
