#include "transport/peer_identity.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

bool Has(const std::string& identity, const std::string& name) { return HasIdentity({identity}, {name}); }

TEST(PeerIdentity, IsAWholeName) {
  EXPECT_TRUE(Has("decode-0.aludel.svc", "decode-0.aludel.svc"));
  EXPECT_TRUE(Has("Decode-0.aludel.svc", "decode-0.ALUDEL.svc"));
  EXPECT_TRUE(Has("spiffe://aludel/decode", "spiffe://aludel/decode"));
  EXPECT_FALSE(Has("decode-0.aludel.svc", "decode-0.aludel.svc.evil.com"));
  EXPECT_FALSE(Has("decode-0.aludel.svc", "xdecode-0.aludel.svc"));
  EXPECT_FALSE(Has("decode", std::string("decode\0.evil", 12)));
}

TEST(PeerIdentity, IsEveryDnsNameOfASuffix) {
  EXPECT_TRUE(Has("*.decode.svc", "a.decode.svc"));
  EXPECT_TRUE(Has("*.decode.svc", "a.b.decode.svc"));
  EXPECT_FALSE(Has("*.decode.svc", "decode.svc"));
  EXPECT_FALSE(Has("*.decode.svc", ".decode.svc"));
  EXPECT_FALSE(Has("*.decode.svc", "xdecode.svc"));
  EXPECT_FALSE(Has("*.decode.svc", "spiffe://evil/x.decode.svc"));
}

TEST(PeerIdentity, IsOneOfSeveral) {
  EXPECT_TRUE(HasIdentity({"a", "b"}, {"c", "b"}));
  EXPECT_FALSE(HasIdentity({"a", "b"}, {"c"}));
  EXPECT_FALSE(HasIdentity({}, {"c"}));
  EXPECT_FALSE(HasIdentity({"a"}, {}));
}

TEST(PeerIdentity, KnowsItsPatterns) {
  for (const char* good : {"a", "a.b", "*.a", "spiffe://x/y"}) EXPECT_TRUE(IsIdentityPattern(good)) << good;
  for (const char* bad : {"", "*", "*.", "a.*", "a b", "*.*.a", "*a"})
    EXPECT_FALSE(IsIdentityPattern(bad)) << bad;
}

}  // namespace
}  // namespace aludel
