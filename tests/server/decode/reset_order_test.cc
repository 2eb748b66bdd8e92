#include "server/decode/reset_order.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

class ResetOrder : public ::testing::Test {
 protected:
  void Begin() {
    ResetInOrder(
        [this](WhenReset done) {
          order_.push_back("here");
          here_.push_back(std::move(done));
        },
        [this](WhenReset done) {
          order_.push_back("others");
          others_ = std::move(done);
        },
        [this](const absl::Status& status) { result_ = status; });
  }

  std::vector<std::string> order_;
  std::vector<WhenReset> here_;
  WhenReset others_;
  std::optional<absl::Status> result_;
};

TEST_F(ResetOrder, OthersDoNotWaitForASlowDiskAndWhatTheyGaveMeanwhileGoes) {
  Begin();
  EXPECT_THAT(order_, ElementsAre("here", "others"));
  others_(absl::OkStatus());
  EXPECT_THAT(order_, ElementsAre("here", "others", "here"));
  here_[0](absl::OkStatus());
  EXPECT_FALSE(result_.has_value());
  here_[1](absl::OkStatus());
  EXPECT_EQ(result_, absl::OkStatus());
}

TEST_F(ResetOrder, TellsOfOthersThatWereNotReset) {
  Begin();
  here_[0](absl::OkStatus());
  others_(absl::UnavailableError("p1"));
  here_[1](absl::OkStatus());
  EXPECT_EQ(result_, absl::UnavailableError("p1"));
}

TEST_F(ResetOrder, TellsOfFilesThatAreLeft) {
  Begin();
  here_[0](absl::OkStatus());
  others_(absl::OkStatus());
  here_[1](absl::InternalError("disk"));
  EXPECT_EQ(result_, absl::InternalError("disk"));
}

}  // namespace
}  // namespace aludel
