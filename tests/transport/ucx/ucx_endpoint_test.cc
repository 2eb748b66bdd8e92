#include "transport/ucx/ucx_endpoint.h"

#include "gtest/gtest.h"
#include "transport/ucx/ucx_connection.h"

namespace aludel {
namespace {

TEST(ParseLanes, TakesTransportsAndLeavesTheConnectionManager) {
  EXPECT_EQ(
      ParseLanes("#\n# UCP endpoint \n#\n#               peer: <no debug data>\n"
                 "#                 lane[0]: cm rdmacm\n"
                 "#                 lane[1]:  2:posix/memory.0 md[1]  -> md[1]/posix/sysdev[255] am am_bw#0\n"
                 "#                 lane[2]:  0:tcp/eth0.0 md[0] -> md[0]/tcp/sysdev[255] rma_bw#0\n"
                 "#                 lane[3]:  0:tcp/eth0.0 md[0] -> md[0]/tcp/sysdev[255] rma_bw#1\n"
                 "#\n#                 am_send: 0..<egr/short>..8185..<rndv>..(inf)\n"),
      "posix/memory tcp/eth0");
  EXPECT_EQ(ParseLanes("#  lane[0]:  7:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib"), "rc_mlx5/mlx5_0:1");
}

TEST(ParseLanes, SaysSoWhenItUnderstandsNothing) {
  for (const char* text : {"", "lane[", "lane[0]:", "lane[0]: x", "lane[0]: a:b", "lane[0]: cm tcp\n\n\n"}) {
    EXPECT_EQ(ParseLanes(text), "unknown") << text;
  }
}

TEST(LanesOnlyCopy, IsFalseWhenADeviceMayReadMemory) {
  EXPECT_TRUE(LanesOnlyCopy("tcp/lo"));
  EXPECT_TRUE(LanesOnlyCopy("posix/memory tcp/eth0"));
  EXPECT_TRUE(LanesOnlyCopy("posix/memory cma/memory"));
  EXPECT_FALSE(LanesOnlyCopy("posix/memory rc_mlx5/mlx5_0:1"));
  EXPECT_FALSE(LanesOnlyCopy("unknown"));
}

}  // namespace
}  // namespace aludel
