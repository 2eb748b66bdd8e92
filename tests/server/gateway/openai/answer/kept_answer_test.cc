#include "server/gateway/openai/answer/kept_answer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

ChoiceDelta Text(const std::string& text) {
  ChoiceDelta delta;
  delta.text = text;
  return delta;
}

TEST(KeptAnswer, IsForgottenOnceItIsTooLong) {
  KeptAnswer kept(2, /*stream=*/false, /*max_bytes=*/10);
  kept.Add(0, Text("12345"));
  kept.Add(1, Text("67890"));
  EXPECT_TRUE(kept.Check(/*writer_bytes=*/0, /*tokens=*/2));
  EXPECT_EQ(kept.room(), 0u);
  kept.Add(1, Text("x"));
  EXPECT_FALSE(kept.Check(0, 3));
  ASSERT_TRUE(kept.too_long().has_value());
  EXPECT_EQ(kept.too_long()->status, 422);
  EXPECT_THAT(kept.too_long()->message,
              HasSubstr("10 bytes that this gateway keeps of one that is not streamed, after 3 tokens of 2"));
  EXPECT_TRUE(kept.Check(0, 4)) << "said once";
  EXPECT_EQ(kept.Take()[1].text, "");
}

TEST(KeptAnswer, CountsWhatIsHeldBesideIt) {
  KeptAnswer kept(1, /*stream=*/true, /*max_bytes=*/10);
  kept.Hold(10);
  EXPECT_TRUE(kept.Check(0, 1));
  kept.Hold(-4);
  EXPECT_TRUE(kept.Check(/*writer_bytes=*/4, 2));
  kept.Restart();
  EXPECT_FALSE(kept.Check(/*writer_bytes=*/5, 3)) << "what is held beside it stays";
  EXPECT_THAT(kept.too_long()->message, HasSubstr("whose last event repeats it"));
}

}  // namespace
}  // namespace aludel
