#include "kernels/device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
