#include "runtime/codec/store/store_record.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr RecordPlace kPlace = {7, 3};

ChunkMeta SomeChunk() {
  ChunkMeta meta;
  meta.entry.key.fill(1);
  meta.entry.before.fill(2);
  meta.entry.encoder.fill(3);
  meta.entry.salt.fill(4);
  meta.entry.token_begin = 256;
  meta.entry.tokens = 2;
  meta.entry.stem = 0x01020304;
  meta.entry.added_unix_ms = 1234567890123;
  meta.tokens = {11, 12};
  meta.frames = {{{0, 1, 0, 256, 2}, 3}, {{1, 2, 0, 256, 2}, 1}};
  return meta;
}

std::vector<uint8_t> SomeRecord(ChunkMeta* meta) {
  const std::vector<uint8_t> first = {5, 6, 7};
  const std::vector<uint8_t> second = {8};
  return EncodeChunkRecord(meta, kPlace, {first, second});
}

absl::Span<const uint8_t> Meta(const RecordHead& head, const std::vector<uint8_t>& record) {
  return absl::MakeConstSpan(record).first(head.entry.meta_bytes);
}

TEST(StoreRecord, ACutChunkSaysItsPlanesInItsHeadAndItsFooter) {
  ChunkMeta meta = SomeChunk();
  meta.entry.planes = 3;
  const std::vector<uint8_t> record = SomeRecord(&meta);
  EXPECT_EQ(record[6], 1);
  EXPECT_EQ(record[7], 3);
  EXPECT_EQ(DecodeRecordHead(record, kPlace)->entry.planes, 3);
  const RecordPlace end = {kPlace.segment, kPlace.block + 1};
  const std::vector<uint8_t> footer = EncodeFooter({meta.entry}, end);
  const auto head = DecodeRecordHead(footer, end);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(DecodeFooter(*head, Meta(*head, footer))->front().planes, 3);
}

TEST(StoreRecord, MorePlanesThanThereAreAreRefused) {
  ChunkMeta meta = SomeChunk();
  const RecordPlace end = {kPlace.segment, kPlace.block + 1};
  for (const uint8_t planes : {uint8_t{kMaxStoredPlanes}, uint8_t{kMaxStoredPlanes + 1}, uint8_t{255}}) {
    meta.entry.planes = planes;
    const bool valid = planes == kMaxStoredPlanes;
    const std::vector<uint8_t> record = SomeRecord(&meta);
    EXPECT_EQ(DecodeRecordHead(record, kPlace).ok(), valid) << int{planes};
    const std::vector<uint8_t> footer = EncodeFooter({meta.entry}, end);
    const auto head = DecodeRecordHead(footer, end);
    ASSERT_TRUE(head.ok()) << head.status();
    const auto entries = DecodeFooter(*head, Meta(*head, footer));
    EXPECT_EQ(entries.ok(), valid) << int{planes};
    EXPECT_EQ(absl::IsDataLoss(entries.status()), !valid);
  }
}

// A number that is not one of planes in four bytes, and would be in one.
TEST(StoreRecord, PlanesOfAFooterAreReadWhole) {
  ChunkMeta meta = SomeChunk();
  SomeRecord(&meta);
  const RecordPlace end = {kPlace.segment, kPlace.block + 1};
  std::vector<uint8_t> footer = EncodeFooter({meta.entry}, end);
  auto head = DecodeRecordHead(footer, end);
  ASSERT_TRUE(head.ok()) << head.status();
  footer[kRecordHeadBytes + kFooterEntryBytes - 3] = 1;  // 256
  const absl::Span<uint8_t> checked = absl::MakeSpan(footer).first(head->entry.meta_bytes);
  std::fill_n(checked.begin() + kRecordHeadBytes - sizeof(uint32_t), sizeof(uint32_t), uint8_t{0});
  head->meta_crc = Crc32c(0, checked);
  EXPECT_THAT(DecodeFooter(*head, checked).status().message(), ::testing::HasSubstr("planes is 256"));
}

TEST(StoreRecord, AChunkComesBackAsItWas) {
  ChunkMeta meta = SomeChunk();
  const std::vector<uint8_t> record = SomeRecord(&meta);
  EXPECT_EQ(record.size(), kStoreBlock);
  const auto head = DecodeRecordHead(record, kPlace);
  ASSERT_TRUE(head.ok()) << head.status();
  const auto chunk = DecodeChunkMeta(*head, Meta(*head, record));
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(chunk->entry.key, meta.entry.key);
  EXPECT_EQ(chunk->entry.before, meta.entry.before);
  EXPECT_EQ(chunk->entry.encoder, meta.entry.encoder);
  EXPECT_EQ(chunk->entry.salt, meta.entry.salt);
  EXPECT_EQ(chunk->entry.token_begin, 256u);
  EXPECT_EQ(chunk->entry.stem, 0x01020304u);
  EXPECT_EQ(chunk->entry.added_unix_ms, 1234567890123);
  EXPECT_EQ(chunk->tokens, meta.tokens);
  ASSERT_EQ(chunk->frames.size(), 2u);
  EXPECT_EQ(chunk->frames[1].coverage.layers, 2);
  EXPECT_EQ(chunk->frames[1].payload_bytes, 1u);
  EXPECT_EQ(chunk->entry.payload_bytes, 4u);
  EXPECT_EQ(record[chunk->entry.meta_bytes + 3], 8);
}

// The golden example of FORMAT.md: changing a byte here changes the version.
TEST(StoreRecord, HasTheBytesOfItsFormat) {
  ChunkMeta meta = SomeChunk();
  const std::vector<uint8_t> record = SomeRecord(&meta);
  const std::vector<uint8_t> begin = {'A', 'L', 'D', 'R', 2,   0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0,
                                      3,   0,   0,   0,   208, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), record.begin()));
  EXPECT_EQ(Crc32c(0, absl::MakeConstSpan(record).subspan(208, 4)), meta.payload_crc);
}

TEST(StoreRecord, EveryFlippedBitIsFound) {
  ChunkMeta meta = SomeChunk();
  const std::vector<uint8_t> record = SomeRecord(&meta);
  for (size_t bit = 0; bit < size_t{meta.entry.meta_bytes} * 8; ++bit) {
    std::vector<uint8_t> damaged = record;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const auto head = DecodeRecordHead(damaged, kPlace);
    if (!head.ok()) continue;
    EXPECT_FALSE(DecodeChunkMeta(*head, Meta(*head, damaged)).ok()) << bit;
  }
}

TEST(StoreRecord, IsNoneAtAnotherPlace) {
  ChunkMeta meta = SomeChunk();
  const std::vector<uint8_t> record = SomeRecord(&meta);
  EXPECT_FALSE(DecodeRecordHead(record, {8, 3}).ok());
  EXPECT_FALSE(DecodeRecordHead(record, {7, 4}).ok());
  EXPECT_FALSE(DecodeRecordHead(absl::MakeConstSpan(record).first(kRecordHeadBytes - 1), kPlace).ok());
}

TEST(StoreRecord, TombstonesAndFootersComeBack) {
  StoreKey key;
  key.fill(9);
  const std::vector<uint8_t> tombstones = EncodeTombstones({key}, kPlace);
  const auto head = DecodeRecordHead(tombstones, kPlace);
  ASSERT_TRUE(head.ok()) << head.status();
  const auto keys = DecodeTombstones(*head, Meta(*head, tombstones));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, std::vector<StoreKey>{key});
  EXPECT_FALSE(DecodeChunkMeta(*head, Meta(*head, tombstones)).ok());

  ChunkMeta meta = SomeChunk();
  SomeRecord(&meta);
  std::vector<ChunkEntry> entries(40, meta.entry);
  entries.emplace_back().key = key;
  const RecordPlace end = {7, 99};
  const std::vector<uint8_t> footer = EncodeFooter(entries, end);
  EXPECT_EQ(footer.size(), FooterBytes(entries.size()));
  EXPECT_EQ(footer.size() % kStoreBlock, 0u);
  EXPECT_EQ(DecodeTrailer(absl::MakeConstSpan(footer).last(kTrailerBytes)), 99u);
  const auto footer_head = DecodeRecordHead(footer, end);
  ASSERT_TRUE(footer_head.ok()) << footer_head.status();
  const auto again = DecodeFooter(*footer_head, Meta(*footer_head, footer));
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), 41u);
  EXPECT_EQ(again->front().block, 3u);
  EXPECT_EQ(again->front().before, meta.entry.before);
  EXPECT_EQ(again->front().stem, 0x01020304u);
  EXPECT_EQ(again->back().block, 0u);
  EXPECT_EQ(again->back().key, key);
}

TEST(StoreRecord, ASegmentOfAnotherVersionIsToldFromADamagedOne) {
  auto bytes = EncodeSegmentHead({5, {}});
  ASSERT_TRUE(DecodeSegmentHead(bytes).ok());
  EXPECT_EQ(DecodeSegmentHead(bytes)->number, 5u);
  bytes[9] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(DecodeSegmentHead(bytes).status()));
  bytes[4] = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeSegmentHead(bytes).status()));
}

}  // namespace
}  // namespace aludel
