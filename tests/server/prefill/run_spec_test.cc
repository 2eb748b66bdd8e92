#include "server/prefill/run_spec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_codec.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Request : public ::testing::Test {
 protected:
  Request() {
    request_.set_request_id("r1");
    request_.add_prompt(7);
    request_.add_prompt(8);
    v1::Ticket* ticket = request_.mutable_ticket();
    ticket->set_id(std::string(16, 'x'));
    ticket->set_epoch(3);
    ticket->mutable_format()->set_name(codec_.spec().name);
    ticket->mutable_format()->set_artifact_hash(codec_.spec().artifact_hash);
  }
  absl::StatusOr<RunSpec> Read() const {
    return ReadRunRequest(request_, [&](absl::string_view name, absl::string_view) {
      const std::shared_ptr<const EncoderFactory> unowned(std::shared_ptr<void>(), &codec_);
      return name == codec_.spec().name ? unowned : nullptr;
    });
  }
  std::string Refusal() const { return std::string(Read().status().message()); }

  FakeEncoders codec_;
  v1::RunRequest request_;
};

TEST_F(Request, IsReadWithItsDefaults) {
  const auto spec = Read();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request_id, "r1");
  EXPECT_THAT(spec->prompt, ElementsAre(7, 8));
  EXPECT_EQ(spec->ticket[15], 'x');
  EXPECT_EQ(spec->epoch, 3);
  EXPECT_EQ(spec->codec.get(), &codec_);
  EXPECT_EQ(spec->max_staleness, absl::InfiniteDuration());
  EXPECT_EQ(spec->credit, std::nullopt);
  EXPECT_EQ(spec->cipher, nullptr);
}

TEST_F(Request, SaysHowMuchItsReceiverTakesAndHowOldFramesMayBe) {
  request_.set_max_staleness_ms(0);
  request_.mutable_ticket()->set_credit_bytes(192);
  request_.mutable_ticket()->set_window_bytes(256);
  const auto spec = Read();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->max_staleness, absl::ZeroDuration());
  EXPECT_EQ(spec->credit, 192);
  EXPECT_EQ(spec->receiver_window_bytes, 256);
}

TEST_F(Request, SaysItsPlaceInAWorkflow) {
  EXPECT_FALSE(Read()->workflow.has_value());
  request_.mutable_workflow()->set_id("report");
  request_.mutable_workflow()->set_agent("planner");
  request_.mutable_workflow()->add_next("writer");
  const auto spec = Read();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->workflow->id, "report");
  EXPECT_EQ(spec->workflow->agent, "planner");
  EXPECT_THAT(spec->workflow->next, ElementsAre("writer"));
  request_.mutable_workflow()->add_next(std::string(65, 'x'));
  EXPECT_THAT(Refusal(), HasSubstr("workflow.next: found 65 bytes, want 1 to 64"));
}

TEST_F(Request, IsRefusedWithWhatWasFoundAndWanted) {
  v1::RunRequest good = request_;
  request_.mutable_ticket()->set_id("short");
  EXPECT_EQ(Refusal(), "ticket.id: found 5 bytes, want 16");
  request_ = good;
  request_.clear_prompt();
  EXPECT_EQ(Refusal(), "prompt: found no tokens, want at least one");
  request_ = good;
  request_.mutable_ticket()->mutable_format()->set_name("other");
  EXPECT_EQ(Refusal(), "ticket.format: \"other\" is not a format of this server");
  request_ = good;
  request_.mutable_ticket()->mutable_format()->set_artifact_hash("beef");
  EXPECT_THAT(Refusal(), HasSubstr("is beef, this server has"));
  request_ = good;
  request_.mutable_ticket()->set_frame_key("abc");
  EXPECT_TRUE(absl::IsInvalidArgument(Read().status()));
  request_ = good;
  request_.set_request_id(std::string(100000, 'a'));
  EXPECT_TRUE(absl::IsInvalidArgument(Read().status()));
}

}  // namespace
}  // namespace aludel
