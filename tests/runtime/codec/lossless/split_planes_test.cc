#include "runtime/codec/lossless/split_planes.h"

#include <cstring>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint8_t> Code(const std::vector<Bf16>& numbers) {
  std::vector<uint8_t> bytes(MaxSplitBytes(numbers.size()));
  bytes.resize(CodeSplit(numbers, absl::MakeSpan(bytes)));
  return bytes;
}

absl::Status Decode(absl::Span<const uint8_t> bytes, std::vector<Bf16>* numbers) {
  const absl::Status status = DecodeSplit(&bytes, absl::MakeSpan(*numbers));
  if (!status.ok() || bytes.empty()) return status;
  return absl::DataLossError("bytes are left");
}

void ExpectSame(const std::vector<Bf16>& numbers) {
  std::vector<Bf16> back(numbers.size());
  const absl::Status status = Decode(Code(numbers), &back);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::memcmp(back.data(), numbers.data(), numbers.size() * sizeof(Bf16)), 0);
}

std::vector<Bf16> Normal(size_t count) {
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<float> normal(0, 2);
  std::vector<Bf16> numbers(count);
  for (Bf16& number : numbers) number = ToBf16(normal(random));
  return numbers;
}

TEST(SplitPlanes, EveryPatternComesBack) {
  std::vector<Bf16> numbers(1 << 16);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i].bits = static_cast<uint16_t>(i);
  ExpectSame(numbers);  // with infinities, NaN and numbers below the normal ones
  for (const Bf16 number : numbers) ExpectSame({number});
}

TEST(SplitPlanes, AnyCountComesBack) {
  for (const size_t count : {1, 2, 3, 63, 64, 128, 1000, 4096, 70001}) ExpectSame(Normal(count));
  ExpectSame(std::vector<Bf16>(5000));
}

TEST(SplitPlanes, NormalNumbersTakeTwoThirds) {
  const size_t bytes = Code(Normal(1 << 16)).size();
  EXPECT_LT(static_cast<double>(2 << 16) / static_cast<double>(bytes), 1.55);  // entropy: 8 + 2.4 bits of 16
  EXPECT_GT(static_cast<double>(2 << 16) / static_cast<double>(bytes), 1.45);
}

TEST(SplitPlanes, NumbersWithoutPatternTakeOneByteMore) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<Bf16> numbers(5000);
  for (Bf16& number : numbers) number.bits = static_cast<uint16_t>(random());
  EXPECT_EQ(Code(numbers).size(), 1 + 2 * numbers.size());
  ExpectSame(numbers);
}

TEST(SplitPlanes, HasTheBytesOfTheDocument) {
  // FORMAT.md's examples.
  EXPECT_THAT(Code({ToBf16(1), ToBf16(-1.5), ToBf16(3)}), ElementsAre(0, 0x7f, 0x7f, 0x80, 0x00, 0xc0, 0x40));
  std::vector<Bf16> numbers(40, ToBf16(1));
  for (size_t i = 3; i < numbers.size(); i += 4) numbers[i] = ToBf16(-2);
  const std::vector<uint8_t> bytes = Code(numbers);
  const size_t exponent_bytes = bytes.size() - numbers.size();
  EXPECT_THAT(absl::MakeConstSpan(bytes).first(exponent_bytes),
              ElementsAre(1, 127, 1, 0x00, 0x0c, 0x00, 0x04, 6, 0, 0, 0, 0xb5, 0xb3, 0xc8, 0x03, 0x00, 0x1c));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(bytes[exponent_bytes + i], i % 4 == 3 ? 0x80 : 0);
}

TEST(SplitPlanes, RefusesWhatIsNotExactlyTheNumbers) {
  const std::vector<Bf16> numbers = Normal(700);
  const std::vector<uint8_t> bytes = Code(numbers);
  std::vector<Bf16> back(numbers.size());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(Decode(absl::MakeConstSpan(bytes).first(size), &back).code(), absl::StatusCode::kDataLoss);
  }
  std::vector<Bf16> more(numbers.size() + 1);
  EXPECT_FALSE(Decode(bytes, &more).ok());

  const auto changed = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> bad = bytes;
    bad[at] = value;
    return Decode(bad, &back).ToString();
  };
  EXPECT_THAT(changed(0, 2), HasSubstr("begin with 2, want 0 or 1"));
  EXPECT_THAT(changed(1, 255), HasSubstr("want at most 256"));
  EXPECT_THAT(changed(3, static_cast<uint8_t>(bytes[3] + 1)), HasSubstr("want 4096"));
}

}  // namespace
}  // namespace aludel
