#include "server/handoff/frame_cipher.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using Bytes = std::vector<uint8_t>;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr FrameCipher::Key kKey = {1, 2, 3};
const Bytes kAssociated = {9, 8, 7};
const Bytes kText(1000, 0x5c);

// kText, sealed as frame 5.
Bytes Sealed() {
  Bytes frame = kText;
  frame.resize(kText.size() + FrameCipher::kTagBytes);
  FrameCipher(kKey).Seal(5, kAssociated, absl::MakeSpan(frame));
  return frame;
}

absl::Status Open(Bytes frame, uint32_t sequence = 5, const Bytes& associated = kAssociated,
                  const FrameCipher::Key& key = kKey) {
  return FrameCipher(key).Open(sequence, associated, absl::MakeSpan(frame));
}

TEST(FrameCipher, OpensWhatItSealed) {
  Bytes frame = Sealed();
  EXPECT_NE(Bytes(frame.begin(), frame.begin() + 1000), kText);
  ASSERT_TRUE(FrameCipher(kKey).Open(5, kAssociated, absl::MakeSpan(frame)).ok());
  frame.resize(1000);
  EXPECT_EQ(frame, kText);
}

TEST(FrameCipher, RefusesWhateverWasChanged) {
  for (const size_t at : {size_t{0}, size_t{999}, size_t{1000}, size_t{1015}}) {
    Bytes frame = Sealed();
    frame[at] ^= 1;
    EXPECT_TRUE(absl::IsDataLoss(Open(frame))) << at;
  }
  EXPECT_TRUE(absl::IsDataLoss(Open(Sealed(), 6)));
  EXPECT_TRUE(absl::IsDataLoss(Open(Sealed(), 5, {9, 8, 6})));
  EXPECT_TRUE(absl::IsDataLoss(Open(Sealed(), 5, kAssociated, {1, 2, 4})));
  EXPECT_TRUE(absl::IsDataLoss(Open(Bytes(15))));
  EXPECT_TRUE(absl::IsDataLoss(Open(Bytes(16))));
}

TEST(FrameCipher, AgreesWithThePublishedExample) {
  // NIST's AES-256-GCM: key and nonce zero, one block of zeros, nothing associated.
  Bytes frame(16 + FrameCipher::kTagBytes);
  FrameCipher({}).Seal(0, {}, absl::MakeSpan(frame));
  EXPECT_EQ(frame, (Bytes{0xce, 0xa7, 0x40, 0x3d, 0x4d, 0x60, 0x6b, 0x6e, 0x07, 0x4e, 0xc5,
                          0xd3, 0xba, 0xf3, 0x9d, 0x18, 0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99,
                          0x6b, 0xf0, 0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19}));
}

TEST(FrameCipher, TakesATicketsKeyOrNone) {
  EXPECT_EQ(*FrameCipher::FromTicket(""), nullptr);
  EXPECT_NE(*FrameCipher::FromTicket(std::string(32, 'k')), nullptr);
  EXPECT_THAT(std::string(FrameCipher::FromTicket("short").status().message()),
              HasSubstr("found 5 bytes, want 32 or none"));
}

}  // namespace
}  // namespace aludel
