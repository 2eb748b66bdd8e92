#include "server/store/flights.h"

#include <numeric>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr int64_t kStep = 4;

std::vector<int32_t> Tokens(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class FlightsTest : public ::testing::Test {
 protected:
  // Whether a prompt of which the store has `have` tokens waits; `calls` counts its call back.
  bool Waits(const std::vector<int32_t>& prompt, int64_t have = 0, ChunkKey root = {}) {
    return flights.Join(
               root, prompt, have, [this] { ++calls; }, &known) == nullptr;
  }

  Flights flights{kStep};
  int calls = 0;
  Flights::Known known;
};

TEST_F(FlightsTest, TheFirstFliesAndTheOthersWaitUntilItGetsFurther) {
  const auto flight = flights.Join({}, Tokens(0, 10), 0, nullptr, &known);
  ASSERT_NE(flight, nullptr);
  EXPECT_TRUE(Waits(Tokens(0, 10)));
  EXPECT_TRUE(Waits(Tokens(0, 12)));
  EXPECT_EQ(calls, 0);
  flight->Advance(4);
  EXPECT_EQ(calls, 2);
  flight->Advance(8);
  EXPECT_EQ(calls, 2) << "each waits for one call";
}

TEST_F(FlightsTest, AnEndLetsTheNextFly) {
  auto flight = flights.Join({}, Tokens(0, 10), 0, nullptr, &known);
  EXPECT_TRUE(Waits(Tokens(0, 10)));
  flight = nullptr;
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(Waits(Tokens(0, 10)));
}

TEST_F(FlightsTest, AFewSharedTokensAreNotWorthWaitingFor) {
  const auto flight = flights.Join({}, Tokens(0, 10), 0, nullptr, &known);
  std::vector<int32_t> other = Tokens(0, 10);
  other[3] = -1;
  EXPECT_FALSE(Waits(other)) << "no chunk of the flight's is of use";
  other = Tokens(0, 10);
  other[4] = -1;
  EXPECT_TRUE(Waits(other));
  EXPECT_FALSE(Waits(other, 1)) << "of what is not stored yet";
}

TEST_F(FlightsTest, AFlightThatIsPastWhatIsSharedIsNotWaitedFor) {
  const auto flight = flights.Join({}, Tokens(0, 20), 0, nullptr, &known);
  std::vector<int32_t> other = Tokens(0, 20);
  other[9] = -1;
  EXPECT_TRUE(Waits(other));
  flight->Advance(8);
  EXPECT_FALSE(Waits(other, 8));
}

TEST_F(FlightsTest, AFlightWhoseChunksAreOfNoUseIsNotWaitedFor) {
  const auto flight = flights.Join({}, Tokens(0, 20), 8, nullptr, &known);
  EXPECT_TRUE(Waits(Tokens(0, 20)));
  EXPECT_EQ(calls, 1) << "to look again at once";
  EXPECT_EQ(known.shared, 20);
  EXPECT_TRUE(Waits(Tokens(0, 20), 8)) << "where it was found";
  EXPECT_FALSE(Waits(Tokens(0, 20))) << "where it was not";
}

TEST_F(FlightsTest, AShortPromptIsWaitedForWhereItIsWhole) {
  const auto flight = flights.Join({}, Tokens(0, 2), 0, nullptr, &known);
  EXPECT_TRUE(Waits(Tokens(0, 2)));
  EXPECT_TRUE(Waits(Tokens(0, 9)));
  EXPECT_FALSE(Waits(Tokens(0, 1)));
}

TEST_F(FlightsTest, AnotherRootIsAnother) {
  const auto flight = flights.Join({}, Tokens(0, 10), 0, nullptr, &known);
  EXPECT_FALSE(Waits(Tokens(0, 10), 0, ChunkKey{1}));
}

TEST_F(FlightsTest, WhoHasWaitedEnoughFliesBesideTheFirst) {
  const auto flight = flights.Join({}, Tokens(0, 10), 0, nullptr, &known);
  EXPECT_NE(flights.Begin({}, Tokens(0, 10), 0), nullptr);
}

}  // namespace
}  // namespace aludel
