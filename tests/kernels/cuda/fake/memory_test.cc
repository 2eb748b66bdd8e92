#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device_health.h"
#include "kernels/open_device.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"

// A GPU's memory, while its streams work.
namespace aludel::cuda::fake {
namespace {

std::unique_ptr<Device> Open() { return OpenDevice({.name = "cuda:0"}).value(); }

TEST(FakeCuda, MemoryIsFreedBehindTheStreamsThatUseIt) {
  const auto device = Open();
  const Stream stream = device->CreateStream().value();
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> ones(1000, 1.0f);
    Buffer buffer = device->Allocate(4000).value();
    device->CopyToDevice(buffer.data(), ones.data(), 4000, stream);
    Buffer copy = device->Allocate(4000).value();
    device->Copy(copy.data(), buffer.data(), 4000, stream);
    // `buffer` goes while the copy from it may be under way.
    buffer = Buffer();
    std::vector<float> found(1000);
    device->CopyToHost(found.data(), copy.data(), 4000, stream);
    ASSERT_TRUE(device->Synchronize(stream).ok());
    ASSERT_EQ(found, ones);
  }
  device->DestroyStream(stream);
}

TEST(FakeCuda, AllocationsWaitForNoWork) {
  const auto device = Open();
  const Stream stream = device->CreateStream().value();
  Buffer from = device->Allocate(4000).value(), to = device->Allocate(4000).value();
  for (int i = 0; i < 100; ++i) {
    device->Copy(to.data(), from.data(), 4000, stream);
    from = Buffer();  // behind the copy
    ResetCounts();
    from = device->Allocate(4000).value();
    EXPECT_EQ(counts().stalls, 0);
  }
  EXPECT_TRUE(device->Synchronize(stream).ok());
  device->DestroyStream(stream);
}

// But for those that there is no memory for until what is being freed has come free.
TEST(FakeCuda, AllocationsWaitForTheMemoryThatIsMissing) {
  const auto device = Open();
  const Stream stream = device->CreateStream().value();
  constexpr size_t kMost = size_t{5} << 30;  // of eight
  const Buffer to = device->Allocate(4000).value();
  ResetCounts();
  for (int i = 0; i < 20; ++i) {
    const absl::StatusOr<Buffer> large = device->Allocate(kMost);
    ASSERT_TRUE(large.ok()) << large.status();
    device->Copy(to.data(), large->data(), 4000, stream);
  }
  EXPECT_GT(counts().stalls, 0);
  EXPECT_TRUE(device->Synchronize(stream).ok());
  device->DestroyStream(stream);
}

TEST(FakeCuda, MemoryThatWasFreedIsFreeForOthersOnceItIsReleased) {
  const auto device = Open();
  const Stream stream = device->CreateStream().value();
  const Buffer to = device->Allocate(4000).value();
  device->ReleaseFreed();
  const int64_t before = FreeDeviceMemory("cuda:0").value();
  constexpr int64_t kBytes = int64_t{1} << 30;
  {
    const Buffer large = device->Allocate(kBytes).value();
    device->Copy(to.data(), large.data(), 4000, stream);
  }
  EXPECT_EQ(FreeDeviceMemory("cuda:0").value(), before - kBytes);  // kept for this process
  device->ReleaseFreed();
  EXPECT_EQ(FreeDeviceMemory("cuda:0").value(), before);
  EXPECT_TRUE(device->Synchronize(stream).ok());
  device->DestroyStream(stream);
}

TEST(FakeCuda, MemoryThatIsNotThereIsAStatus) {
  const auto device = Open();
  FailAllocationsAbove(1 << 20);
  EXPECT_EQ(device->Allocate(2 << 20).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device->Allocate(1 << 20).ok());
  Heal();
  EXPECT_TRUE(device->Allocate(2 << 20).ok());
  EXPECT_GT(FreeDeviceMemory("cuda:0").value_or(0), 1 << 30);
  EXPECT_FALSE(FreeDeviceMemory("cpu").has_value());
}

}  // namespace
}  // namespace aludel::cuda::fake
