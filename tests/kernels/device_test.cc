#include "kernels/device.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#ifdef ALUDEL_HAVE_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(OpenDevice, NamesWhatItDoesNotKnow) {
  const auto device = OpenDevice({.name = "tpu"});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("\"tpu\""));
}

TEST(OpenDevice, WantsAGpuNumber) {
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1", "cuda:99999999999"}) {
    EXPECT_EQ(OpenDevice({.name = name}).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(OpenDevice, RefusesNegativeThreads) {
  EXPECT_EQ(OpenDevice({.threads = -1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OpenDevice, KnowsInstructionsByName) {
  EXPECT_TRUE(OpenDevice({.instructions = "portable"}).ok());
  const auto device = OpenDevice({.instructions = "mmx"});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("avx2"));
}

#ifdef ALUDEL_HAVE_CUDA
TEST(OpenDevice, KnowsAGpusInstructionsByName) {
  const auto device = OpenDevice({.name = "cuda:0", .instructions = "avx2"});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("\"mma\", \"wgmma\""));
  for (const char* known : {"", "mma", "wgmma"}) {
    EXPECT_EQ(OpenDevice({.name = "cuda:4096", .instructions = known}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(OpenDevice, ChoosesTheInstructionsOfAGpu) {
  EXPECT_EQ(BestInstructions({9, 0}), "wgmma");
  for (const ComputeCapability other : {ComputeCapability{8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    EXPECT_EQ(BestInstructions(other), "mma");
  }
}

TEST(OpenDevice, SaysThatAGpuLacksTheInstructions) {
  EXPECT_EQ(CheckCapability("A100", {8, 0}, "mma"), absl::OkStatus());
  EXPECT_EQ(CheckCapability("H100", {9, 0}, "wgmma"), absl::OkStatus());
  for (const auto& [capability, text] :
       {std::pair(ComputeCapability{8, 0},
                  "A card has compute capability 8.0, instructions \"wgmma\" want 9.0"),
        std::pair(ComputeCapability{10, 0}, "10.0, instructions \"wgmma\" want 9.0; \"mma\" runs on it"),
        std::pair(ComputeCapability{7, 5}, "7.5, want 8.0 or more")}) {
    const absl::Status status = CheckCapability("A card", capability, "wgmma");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

// No machine has a GPU of this number, so this holds with and without a driver.
TEST(OpenDevice, SaysThatAGpuIsMissing) {
  const auto device = OpenDevice({.name = "cuda:4096"});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition) << device.status();
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("cuda:4096"));
}
#else
TEST(OpenDevice, SaysThatThisBuildHasNoCuda) {
  const auto device = OpenDevice({.name = "cuda:0"});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("no CUDA"));
}
#endif

}  // namespace
}  // namespace aludel
