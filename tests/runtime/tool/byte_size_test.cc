#include "runtime/tool/byte_size.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(ByteSize, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(ParseBytes("--max-memory", "8GB").value(), 8'000'000'000);
  EXPECT_EQ(ParseBytes("--max-memory", "1.5 GiB").value(), 1'610'612'736);
  EXPECT_EQ(ParseBytes("--max-memory", "500mb").value(), 500'000'000);
  EXPECT_EQ(ParseBytes("--max-memory", "2KiB").value(), 2048);
  EXPECT_EQ(ParseBytes("--max-memory", "12345").value(), 12345);
  EXPECT_EQ(ParseBytes("--max-memory", "7B").value(), 7);
}

TEST(ByteSize, RefusesWhatIsNoSizeAndNamesTheFlag) {
  for (const char* text : {"", "GB", "-1GB", "0", "8 apples", "nan", "inf", "1e30TB", "0.1B"}) {
    const absl::Status status = ParseBytes("--max-disk", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--max-disk is \"")) << text;
  }
}

TEST(ByteSize, ReadsTimes) {
  EXPECT_EQ(ParseSeconds("--budget", "20m").value(), 1200);
  EXPECT_EQ(ParseSeconds("--budget", "1h30m").value(), 5400);
  EXPECT_EQ(ParseSeconds("--budget", "90s").value(), 90);
  for (const char* text : {"", "20", "-5m", "0s", "inf", "soon"}) {
    EXPECT_THAT(std::string(ParseSeconds("--budget", text).status().message()), HasSubstr("--budget is \""))
        << text;
  }
}

TEST(ByteSize, WritesWhatPeopleRead) {
  EXPECT_EQ(FormatBytes(9.1e9), "9.1 GB");
  EXPECT_EQ(FormatBytes(2.5e6), "2.5 MB");
  EXPECT_EQ(FormatBytes(100), "0.1 KB");
  EXPECT_EQ(FormatSeconds(9.14), "9.1 s");
  EXPECT_EQ(FormatSeconds(660), "11.0 min");
  EXPECT_EQ(FormatSeconds(9000), "2.5 h");
}

}  // namespace
}  // namespace aludel
