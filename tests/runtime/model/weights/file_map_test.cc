#include "runtime/model/weights/file_map.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/weights/page_readers.h"
#include "runtime/model/weights/read_ahead.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPage = 4096;

std::string RandomBytes(size_t size) {
  std::mt19937 random(size);
  std::string bytes(size, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

class FileMapTest : public ::testing::Test {
 protected:
  // An odd length, over several huge pages.
  FileMapTest() { std::ofstream(path_, std::ios::binary) << bytes_; }

  bool Equal(const FileMap& file, size_t begin, size_t end) const {
    return std::equal(bytes_.begin() + begin, bytes_.begin() + end,
                      reinterpret_cast<const char*>(file.data()) + begin);
  }

  const std::string bytes_ = RandomBytes(5'000'003);
  const TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/file";
};

TEST(FileMap, RefusesAFifoAndDoesNotWaitForItsWriter) {
  const std::string fifo = ::testing::TempDir() + "file_map_test.fifo";
  ::unlink(fifo.c_str());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(FileMap::Open(fifo).status().message()), HasSubstr("not a regular file"));
}

TEST_F(FileMapTest, HoldsTheFileWithAndWithoutTheCache) {
  const auto file = FileMap::Open(path_).value();
  ASSERT_EQ(file->size(), bytes_.size());
  EXPECT_TRUE(Equal(*file, 0, bytes_.size()));
  if (!file->BypassCache()) GTEST_SKIP() << "this file system has no direct reads";
  ASSERT_TRUE(file->Populate(0, 2 * kPage).ok());
  ASSERT_TRUE(file->Populate(2 * kPage, bytes_.size()).ok());
  EXPECT_TRUE(Equal(*file, 0, bytes_.size()));
  file->UseCache();
  EXPECT_TRUE(Equal(*file, 0, bytes_.size()));
}

TEST_F(FileMapTest, DropLeavesPagesThatNeighborsShare) {
  const auto file = FileMap::Open(path_).value();
  if (!file->BypassCache()) GTEST_SKIP() << "this file system has no direct reads";
  ASSERT_TRUE(file->Populate(0, bytes_.size()).ok());
  file->Drop(kPage / 2, 10 * kPage + 1, true);
  EXPECT_TRUE(Equal(*file, 0, kPage));
  EXPECT_EQ(file->data()[kPage] | file->data()[10 * kPage - 1], 0);
  EXPECT_TRUE(Equal(*file, 10 * kPage, bytes_.size()));
}

TEST_F(FileMapTest, APageGoesWithItsLastReader) {
  const auto file = FileMap::Open(path_).value();
  if (!file->BypassCache()) GTEST_SKIP() << "this file system has no direct reads";
  ASSERT_TRUE(file->Populate(0, bytes_.size()).ok());
  const auto gone = [&](size_t begin, size_t end) {
    return std::all_of(file->data() + begin, file->data() + end, [](uint8_t byte) { return byte == 0; });
  };
  // The second and third range share page 5, the last one is read twice.
  const std::vector<ByteRange> ranges = {
      {0, 5 * kPage},         {100, 5 * kPage + 1},       {5 * kPage + 1, 9 * kPage},
      {9 * kPage, 9 * kPage}, {8 * kPage, bytes_.size()}, {8 * kPage, bytes_.size()}};
  PageReaders readers(file.get(), ranges, true);
  readers.Done(ranges[0]);
  EXPECT_TRUE(Equal(*file, 0, bytes_.size())) << "the second reader needs page 0 too";
  readers.Done(ranges[1]);
  EXPECT_TRUE(gone(0, 5 * kPage));
  EXPECT_TRUE(Equal(*file, 5 * kPage, bytes_.size()));
  readers.Done(ranges[3]);
  readers.Done(ranges[4]);
  readers.Done(ranges[2]);
  EXPECT_TRUE(gone(5 * kPage, 8 * kPage));
  EXPECT_TRUE(Equal(*file, 8 * kPage, bytes_.size()));
  readers.Done(ranges[5]);
  EXPECT_TRUE(gone(0, bytes_.size()));
}

TEST_F(FileMapTest, SaysWhenTheFileHasBeenCut) {
  const auto file = FileMap::Open(path_).value();
  const bool bypass = file->BypassCache();
  ASSERT_EQ(::truncate(path_.c_str(), 1'000'001), 0);
  const absl::Status status = file->Populate(0, bytes_.size());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bypass;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
}

TEST_F(FileMapTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(FileMap::Open(path_ + "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FileMap::Open(directory_.path()).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  EXPECT_EQ(FileMap::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
}

std::vector<FilePiece> Pieces(FileMap& file, size_t bytes) {
  std::vector<FilePiece> pieces;
  for (uint64_t begin = 0; begin < file.size(); begin += bytes) {
    pieces.push_back({&file, begin, std::min<uint64_t>(begin + bytes, file.size())});
  }
  return pieces;
}

TEST_F(FileMapTest, ReadAheadDeliversPiecesInOrder) {
  const auto file = FileMap::Open(path_).value();
  file->BypassCache();
  ReadAhead reader(Pieces(*file, kPage));
  for (const FilePiece& piece : reader.pieces()) {
    ASSERT_TRUE(reader.AwaitNext().ok());
    ASSERT_TRUE(Equal(*file, piece.begin, piece.end)) << piece.begin;
    file->Drop(piece.begin, piece.end, true);
  }
}

TEST_F(FileMapTest, ReadAheadEndsWithTheFirstErrorAndWhenItIsLeft) {
  const auto file = FileMap::Open(path_).value();
  { ReadAhead left(Pieces(*file, kPage)); }
  file->BypassCache();
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  ReadAhead reader(Pieces(*file, kPage));
  EXPECT_EQ(reader.AwaitNext().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace aludel
