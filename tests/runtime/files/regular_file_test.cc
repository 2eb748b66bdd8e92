#include "runtime/files/regular_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "gtest/gtest.h"
#include "runtime/files/json_reader.h"

namespace aludel {
namespace {

TEST(RegularFile, IsWhatCanBeReadWithoutWaiting) {
  const std::string directory = ::testing::TempDir();
  const std::string fifo = absl::StrCat(directory, "regular_file_test.fifo");
  const std::string file = absl::StrCat(directory, "regular_file_test.json");
  ::unlink(fifo.c_str());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(file) << "{}";
  EXPECT_TRUE(CheckRegularFile(file).ok());
  EXPECT_TRUE(CheckRegularFile("/nowhere").ok());
  const absl::Status refused =
      absl::InvalidArgumentError(absl::StrCat(fifo, ": is a FIFO, want a regular file"));
  EXPECT_EQ(CheckRegularFile(fifo), refused);
  EXPECT_EQ(CheckRegularFile("/tmp").message(), "/tmp: is a directory, want a regular file");
  EXPECT_EQ(CheckRegularFile("/dev/zero").message(), "/dev/zero: is a device, want a regular file");
  // Configurations, tokenizers, templates and manifests come through this one.
  EXPECT_EQ(ReadFile(fifo, 100).status(), refused);
  EXPECT_EQ(*ReadFile(file, 100), "{}");
  EXPECT_EQ(ReadFile("/nowhere", 100).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace aludel
