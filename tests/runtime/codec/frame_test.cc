#include "runtime/codec/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// The example of FORMAT.md.
FrameHeader ExampleHeader() {
  FrameHeader header;
  header.kind = FrameKind::kScd;
  for (int i = 0; i < 16; ++i) header.ticket[i] = static_cast<uint8_t>(i);
  header.epoch = 0x1122334455667788;
  header.sequence = 7;
  header.coverage = {3, 1, 0, 256, 2};
  header.artifact = {0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7};
  return header;
}

std::vector<uint8_t> ExamplePayload() { return {0xde, 0xad, 0xbe, 0xef}; }

std::string Hex(absl::Span<const uint8_t> bytes) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::vector<uint8_t> ExampleBytes() {
  const auto bytes = EncodeFrameHeader(ExampleHeader(), ExamplePayload());
  return {bytes.begin(), bytes.end()};
}

TEST(Crc32c, AgreesWithThePublishedCheckValue) {
  const std::string check = "123456789";
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(check.data()), check.size());
  EXPECT_EQ(Crc32c(0, bytes), 0xE3069283u);
  EXPECT_EQ(Crc32c(Crc32c(0, bytes.first(4)), bytes.subspan(4)), 0xE3069283u);
  // RFC 3720, appendix B.4: 32 bytes of zeros.
  EXPECT_EQ(Crc32c(0, std::vector<uint8_t>(32, 0)), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(0, {}), 0u);
}

TEST(Frame, HeaderBytesAreThoseOfTheFormatDocument) {
  EXPECT_EQ(Hex(ExampleBytes()),
            "414c444601000200"
            "000102030405060708090a0b0c0d0e0f"
            "8877665544332211"
            "07000000"
            "0300010000000000"
            "0001000002000000"
            "00000000"
            "a0a1a2a3a4a5a6a7"
            "04000000"
            "0000000000000000"
            "7920d875");
}

TEST(Frame, HeaderSurvivesARoundTrip) {
  const auto header = DecodeFrameHeader(ExampleBytes());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->kind, FrameKind::kScd);
  EXPECT_EQ(header->ticket, ExampleHeader().ticket);
  EXPECT_EQ(header->epoch, ExampleHeader().epoch);
  EXPECT_EQ(header->sequence, 7u);
  EXPECT_EQ(header->coverage.first_layer, 3);
  EXPECT_EQ(header->coverage.layers, 1);
  EXPECT_EQ(header->coverage.token_begin, 256u);
  EXPECT_EQ(header->coverage.tokens, 2u);
  EXPECT_EQ(header->artifact, ExampleHeader().artifact);
  EXPECT_EQ(header->payload_bytes, 4u);
  EXPECT_TRUE(VerifyFrame(ExampleBytes(), ExamplePayload()).ok());
}

TEST(Frame, EverySingleBitFlipIsRefused) {
  const std::vector<uint8_t> good = ExampleBytes();
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::vector<uint8_t> bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(VerifyFrame(bad, ExamplePayload()).ok()) << "bit " << bit;
  }
  for (size_t bit = 0; bit < 32; ++bit) {
    std::vector<uint8_t> bad = ExamplePayload();
    bad[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_THAT(VerifyFrame(good, bad).ToString(), HasSubstr("checksum"));
  }
}

TEST(Frame, TruncatedBytesNameWhatIsMissing) {
  const std::vector<uint8_t> good = ExampleBytes();
  for (size_t size = 0; size < good.size(); ++size) {
    const absl::Span<const uint8_t> cut(good.data(), size);
    EXPECT_THAT(DecodeFrameHeader(cut).status().ToString(), HasSubstr("want 80"));
    EXPECT_FALSE(VerifyFrame(cut, ExamplePayload()).ok());
  }
  const std::vector<uint8_t> payload = ExamplePayload();
  EXPECT_THAT(VerifyFrame(good, absl::MakeSpan(payload).first(3)).ToString(),
              HasSubstr("payload is 3 bytes, its header says 4"));
}

// Sets bytes of a good header and expects the decoder's complaint.
std::string ComplaintAbout(size_t at, std::vector<uint8_t> bytes) {
  std::vector<uint8_t> header = ExampleBytes();
  std::copy(bytes.begin(), bytes.end(), header.begin() + static_cast<int64_t>(at));
  const auto decoded = DecodeFrameHeader(header);
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss);
  return decoded.status().ToString();
}

TEST(Frame, BadFieldsAreNamed) {
  EXPECT_THAT(ComplaintAbout(0, {'X'}), HasSubstr("magic is 584c4446"));
  EXPECT_THAT(ComplaintAbout(4, {2}), HasSubstr("version is 2, this build reads 1"));
  EXPECT_THAT(ComplaintAbout(6, {9}), HasSubstr("kind is 9, want 1 to 7"));
  EXPECT_THAT(ComplaintAbout(36, {0xff, 0xff}), HasSubstr("first_layer 65535"));
  EXPECT_THAT(ComplaintAbout(38, {0}), HasSubstr("layers is 0"));
  EXPECT_THAT(ComplaintAbout(42, {1}), HasSubstr("reserved"));
  EXPECT_THAT(ComplaintAbout(44, {0xff, 0xff, 0xff, 0xff}), HasSubstr("token_begin 4294967295"));
  EXPECT_THAT(ComplaintAbout(48, {0}), HasSubstr("tokens is 0"));
  EXPECT_THAT(ComplaintAbout(55, {1}), HasSubstr("reserved"));
  EXPECT_THAT(ComplaintAbout(67, {0xff}), HasSubstr("payload_bytes is"));
  EXPECT_THAT(ComplaintAbout(75, {1}), HasSubstr("reserved"));
}

// Three layers of which the first is not shipped, ten tokens.
FrameLedger SmallLedger() { return FrameLedger({false, true, true}, 0, 10); }

TEST(FrameLedger, IsCompleteWhenEveryShippedCellHasBeenReceived) {
  FrameLedger ledger = SmallLedger();
  EXPECT_EQ(ledger.missing_cells(), 20u);
  EXPECT_TRUE(ledger.Add({2, 1, 0, 4, 6}).ok());
  EXPECT_TRUE(ledger.Add({1, 2, 0, 0, 4}).ok());
  EXPECT_FALSE(ledger.complete());
  EXPECT_TRUE(ledger.Add({1, 1, 0, 4, 6}).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(FrameLedger, RefusesOverlapAndKeepsWhatItHad) {
  FrameLedger ledger = SmallLedger();
  ASSERT_TRUE(ledger.Add({1, 1, 0, 0, 5}).ok());
  EXPECT_EQ(ledger.Add({1, 1, 0, 4, 2}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger.Add({1, 2, 0, 4, 6}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger.missing_cells(), 15u);
}

TEST(FrameLedger, RefusesCellsOutsideTheHandoff) {
  FrameLedger ledger = SmallLedger();
  for (const FrameCoverage& bad : std::vector<FrameCoverage>{{0, 1, 0, 0, 1},
                                                             {2, 2, 0, 0, 1},
                                                             {1, 0, 0, 0, 1},
                                                             {65535, 65535, 0, 0, 1},
                                                             {1, 1, 0, 9, 2},
                                                             {1, 1, 0, 0, 0},
                                                             {1, 1, 0, 4294967295u, 4294967295u},
                                                             {1, 1, 1, 0, 1}}) {
    EXPECT_EQ(ledger.Add(bad).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ledger.missing_cells(), 20u);
}

TEST(FrameLedger, HandoffOfNothingIsCompleteAtOnce) { EXPECT_TRUE(FrameLedger({true}, 0, 0).complete()); }

}  // namespace
}  // namespace aludel
