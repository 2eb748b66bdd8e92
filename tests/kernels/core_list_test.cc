#include "kernels/core_list.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/open_device.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CoreList, IsNumbersAndRanges) {
  EXPECT_THAT(ParseCoreList("").value(), IsEmpty());
  EXPECT_THAT(ParseCoreList("5").value(), ElementsAre(5));
  EXPECT_THAT(ParseCoreList("8,0-3").value(), ElementsAre(8, 0, 1, 2, 3));
  for (const char* wrong : {",", "1,", "a", "3-1", "-1", "1-2-3", "0-99999", "1,1", "0-3,2"}) {
    EXPECT_EQ(ParseCoreList(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(CoreList, KeepsAThreadAndThoseItStartsOnItsCores) {
  std::thread([] {
    const int core = AllowedCores().back();
    ASSERT_TRUE(KeepOnCores({core}).ok());
    std::thread([core] { EXPECT_THAT(AllowedCores(), ElementsAre(core)); }).join();
  }).join();
}

TEST(CoreList, RefusesCoresThatAreNotThere) {
  std::thread([] {
    const std::vector<int> before = AllowedCores();
    const absl::Status status = KeepOnCores({before.front(), 1023});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("1023"));
    EXPECT_EQ(AllowedCores(), before);
  }).join();
}

TEST(CoreList, ADeviceComputesOnItsCores) {
  std::thread([] {
    const int core = AllowedCores().back();
    EXPECT_EQ(OpenDevice({.threads = 2, .cores = {core}}).status().code(),
              absl::StatusCode::kInvalidArgument);
    const auto device = OpenDevice({.cores = {core}});
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_THAT(AllowedCores(), ElementsAre(core));
  }).join();
}

// A tree of control groups as the kernel shows it.
class Quota : public ::testing::Test {
 protected:
  Quota() {
    std::string name = (std::filesystem::temp_directory_path() / "quota_XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~Quota() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int Cores() { return CoresOfQuota((root_ / "groups").string(), root_.string()); }
  std::filesystem::path root_;
};

TEST_F(Quota, IsTheLeastOfAllGroupsAbove) {
  Write("groups", "0::/a/b\n");
  EXPECT_EQ(Cores(), 0);
  Write("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(), 0);
  Write("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(Cores(), 2);
  Write("cpu.max", "50000 100000\n");
  EXPECT_EQ(Cores(), 1);
}

TEST_F(Quota, OfTheFirstVersionStandsInTwoFiles) {
  Write("groups", "5:memory:/x\n4:cpu,cpuacct:/c\n0::/\n");
  Write("cpu/c/cpu.cfs_quota_us", "-1\n");
  Write("cpu/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cores(), 0);
  Write("cpu/c/cpu.cfs_quota_us", "399999\n");
  EXPECT_EQ(Cores(), 3);
}

TEST_F(Quota, OfNonsenseIsNoLimit) {
  Write("groups", "nonsense\n0::\n::::\n0::/a\n");
  Write("a/cpu.max", "a b c\n");
  EXPECT_EQ(Cores(), 0);
  std::filesystem::remove(root_ / "groups");
  EXPECT_EQ(Cores(), 0);
}

}  // namespace
}  // namespace aludel
