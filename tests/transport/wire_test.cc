#include "transport/wire.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

absl::string_view AsText(const WireHeader& wire) {
  return {reinterpret_cast<const char*>(wire.bytes.data()), wire.size};
}

absl::Span<const uint8_t> AsSpan(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

EndpointAddress SomeAddress() {
  EndpointAddress address{.kind = AddressKind::kUcx, .endpoint_id = 0x1122334455667788, .sockets = {}};
  address.sockets.push_back({.family = 4, .reserved = 0, .port = 0x1234, .ip = {10, 0, 0, 7}});
  address.sockets.push_back({.family = 6, .reserved = 0, .port = 2, .ip = {0xfd, 1, 2}});
  return address;
}

TEST(WireHeader, HasTheBytesOfTheDocument) {
  WireHeader wire = EncodeWireHeader(MessageType::kData, 0x0102030405060708, 0, AsSpan("hi"));
  SetSequence(wire, 0x1112131415161718);
  EXPECT_EQ(absl::BytesToHexString(AsText(wire)),
            "41444c4d"
            "0100"
            "03"
            "00"
            "02000000"
            "00000000"
            "0807060504030201"
            "1817161514131211"
            "6869");
}

TEST(WireHeader, ComesBackFromItsBytes) {
  const WireHeader wire = EncodeWireHeader(MessageType::kData, 7, 9, AsSpan("header"));
  const auto parsed = ParseWireHeader(AsSpan(AsText(wire)));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->type, MessageType::kData);
  EXPECT_EQ(parsed->sender, 7);
  EXPECT_EQ(parsed->sequence, 9);
  EXPECT_EQ(parsed->header, AsSpan("header"));
}

TEST(WireHeader, IsRefusedWhenTruncatedTooLongOrChanged) {
  const std::string good(AsText(EncodeWireHeader(MessageType::kData, 7, 9, AsSpan("header"))));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseWireHeader(AsSpan(good.substr(0, size))).has_value()) << size;
  }
  EXPECT_FALSE(ParseWireHeader(AsSpan(good + "x")).has_value());
  for (size_t i = 0; i < 16; ++i) {  // all but sender, sequence and the caller's header
    std::string changed = good;
    changed[i] ^= 0x40;
    EXPECT_FALSE(ParseWireHeader(AsSpan(changed)).has_value()) << i;
  }
  std::string ping(AsText(EncodeWireHeader(MessageType::kPing, 7, 9, AsSpan("header"))));
  EXPECT_FALSE(ParseWireHeader(AsSpan(ping)).has_value());
  std::string oversized = good;
  oversized.resize(sizeof(MessagePrefix) + kMaxHeaderBytes + 1);
  const uint32_t claimed = kMaxHeaderBytes + 1;
  std::memcpy(oversized.data() + offsetof(MessagePrefix, header_bytes), &claimed, sizeof(claimed));
  EXPECT_FALSE(ParseWireHeader(AsSpan(oversized)).has_value());
}

TEST(Address, HasTheBytesOfTheDocument) {
  EXPECT_EQ(absl::BytesToHexString(EncodeAddress(SomeAddress())),
            "414c4441"
            "0100"
            "02"
            "02"
            "8877665544332211"
            "04"
            "00"
            "3412"
            "0a000007000000000000000000000000"
            "06"
            "00"
            "0200"
            "fd010200000000000000000000000000");
}

TEST(Address, ComesBackFromItsBytes) {
  const auto parsed = ParseAddress(EncodeAddress(SomeAddress()), AddressKind::kUcx);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(EncodeAddress(*parsed), EncodeAddress(SomeAddress()));
}

TEST(Address, IsRefusedWhenTruncatedTooLongOrChanged) {
  const std::string good = EncodeAddress(SomeAddress());
  const auto code = [](absl::string_view bytes) {
    return ParseAddress(bytes, AddressKind::kUcx).status().code();
  };
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(code(good.substr(0, size)), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_EQ(code(good + "x"), absl::StatusCode::kInvalidArgument);
  const size_t first = 16, second = 36;
  for (size_t i : {size_t{0}, size_t{4}, size_t{6}, size_t{7}, first, first + 1, first + 8, second + 1}) {
    std::string changed = good;
    changed[i] ^= 0x40;
    EXPECT_EQ(code(changed), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(ParseAddress(good, AddressKind::kLoopback).status().code(), absl::StatusCode::kInvalidArgument);
  EndpointAddress empty = SomeAddress();
  empty.sockets.clear();
  EXPECT_EQ(code(EncodeAddress(empty)), absl::StatusCode::kInvalidArgument);
  EndpointAddress nobody = SomeAddress();
  nobody.endpoint_id = 0;
  EXPECT_EQ(code(EncodeAddress(nobody)), absl::StatusCode::kInvalidArgument);
}

TEST(RandomId, DoesNotRepeat) { EXPECT_NE(RandomId(), RandomId()); }

}  // namespace
}  // namespace aludel
