#include "server/prefill/receiver_policy.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

SocketEntry Socket(const std::string& ip, uint16_t port = 7202) {
  SocketEntry socket = *ParseIpAddress(ip);
  socket.port = port;
  return socket;
}

std::string Address(std::vector<SocketEntry> sockets) {
  return EncodeAddress({.kind = AddressKind::kTcp, .endpoint_id = 7, .sockets = std::move(sockets)});
}

absl::StatusOr<std::string> Admit(const std::vector<std::string>& allowed, const std::string& address,
                                  const std::string& caller) {
  std::vector<AddressPattern> patterns;
  for (const std::string& pattern : allowed) patterns.push_back(*AddressPattern::Parse(pattern));
  return ReceiverPolicy(AddressKind::kTcp, patterns).Admit(address, caller);
}

TEST(ReceiverPolicy, AdmitsTheCallersOwnAddress) {
  const std::string v4 = Address({Socket("192.0.2.7")});
  EXPECT_EQ(*Admit({}, v4, "ipv4:192.0.2.7:50000"), v4);
  EXPECT_EQ(*Admit({}, v4, "ipv6:[::ffff:192.0.2.7]:50000"), v4);
  const std::string v6 = Address({Socket("2001:db8::7")});
  EXPECT_EQ(*Admit({}, v6, "ipv6:[2001:db8::7]:50000"), v6);
  EXPECT_EQ(*Admit({}, v6, "ipv6:%5B2001:db8::7%5D:50000"), v6);
}

TEST(ReceiverPolicy, RefusesEveryOther) {
  for (const char* caller :
       {"ipv4:192.0.2.8:50000", "ipv6:[2001:db8::7]:1", "unix:/tmp/socket", "", "ipv4:", "ipv4:x"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(Admit({}, Address({Socket("192.0.2.7")}), caller).status()))
        << caller;
  }
  // What is local to this machine is no business of a caller elsewhere.
  EXPECT_TRUE(
      absl::IsPermissionDenied(Admit({}, Address({Socket("127.0.0.1")}), "ipv4:192.0.2.7:50000").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(Admit({}, Address({Socket("::1")}), "ipv4:192.0.2.7:50000").status()));
  EXPECT_TRUE(
      absl::IsPermissionDenied(Admit({}, Address({Socket("192.0.2.7")}), "ipv4:127.0.0.1:50000").status()));
}

TEST(ReceiverPolicy, AdmitsAnyAddressOfThisMachineToACallerOnIt) {
  const std::string address = Address({Socket("127.0.0.1")});
  EXPECT_EQ(*Admit({}, address, "ipv4:127.0.0.1:50000"), address);
  EXPECT_EQ(*Admit({}, address, "ipv6:[::1]:50000"), address);
}

TEST(ReceiverPolicy, AdmitsWhatTheConfigurationAllows) {
  const std::string address = Address({Socket("10.1.2.3")});
  const std::string caller = "ipv4:192.0.2.7:50000";
  for (const char* pattern : {"10.1.0.0/16", "10.1.2.3", "10.1.2.3:7202", "0.0.0.0/0", "10.1.2.3/32"}) {
    EXPECT_EQ(*Admit({pattern}, address, caller), address) << pattern;
  }
  for (const char* pattern : {"10.2.0.0/16", "10.1.2.4", "10.1.2.3:7203", "10.1.2.2/32", "::/0"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(Admit({pattern}, address, caller).status())) << pattern;
  }
  EXPECT_TRUE(Admit({"fd00::/8"}, Address({Socket("fd12::1")}), caller).ok());
  EXPECT_TRUE(Admit({"[fd12::1]:7202"}, Address({Socket("fd12::1")}), caller).ok());
  EXPECT_FALSE(Admit({"[fd12::1]:7203"}, Address({Socket("fd12::1")}), caller).ok());
}

TEST(ReceiverPolicy, KeepsOnlyTheSocketsThatItAdmits) {
  EXPECT_EQ(*Admit({}, Address({Socket("198.51.100.1"), Socket("192.0.2.7"), Socket("127.0.0.1")}),
                   "ipv4:192.0.2.7:50000"),
            Address({Socket("192.0.2.7")}));
}

TEST(ReceiverPolicy, RefusesBytesThatAreNoAddress) {
  EXPECT_TRUE(absl::IsInvalidArgument(Admit({"0.0.0.0/0"}, "garbage", "ipv4:127.0.0.1:1").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Admit({"0.0.0.0/0"}, "", "ipv4:127.0.0.1:1").status()));
}

TEST(AddressPattern, RefusesWhatItDoesNotUnderstand) {
  for (const char* text :
       {"", "host", "host:80", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.1:0", "10.0.0.1:65536",
        "10.0.0.1:", "[fd00::1]", "[fd00::1:80", "fd00::/129", "10.0.0/8"}) {
    EXPECT_FALSE(AddressPattern::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace aludel
