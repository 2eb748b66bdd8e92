#include "server/rpc/cache_salt.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

std::string Tenant(const std::string& salt) { return salt.substr(0, 16); }

TEST(CacheSalt, DiffersBetweenKeysAndBetweenSaltsOfOneKey) {
  EXPECT_EQ(MakeCacheSalt("", ""), "");
  EXPECT_EQ(MakeCacheSalt("alice", "").size(), 32u);
  EXPECT_EQ(MakeCacheSalt("alice", "1"), MakeCacheSalt("alice", "1"));
  EXPECT_NE(MakeCacheSalt("alice", "1"), MakeCacheSalt("alice", "2"));
  EXPECT_NE(MakeCacheSalt("alice", "1"), MakeCacheSalt("bob", "1"));
  EXPECT_NE(MakeCacheSalt("alice", "1"), MakeCacheSalt("alice1", ""));
}

TEST(CacheSalt, BeginsWithItsTenant) {
  EXPECT_EQ(Tenant(MakeCacheSalt("alice", "1")), Tenant(MakeCacheSalt("alice", "")));
  EXPECT_NE(Tenant(MakeCacheSalt("alice", "1")), Tenant(MakeCacheSalt("bob", "1")));
  EXPECT_EQ(Tenant(MakeCacheSalt("", "1")), std::string(16, '\0'));
}

}  // namespace
}  // namespace aludel
