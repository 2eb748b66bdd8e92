#include "server/decode/handoff/run_request.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

TEST(RunRequest, GivesCreditOnlyWhereTheWindowDoesNotHoldAllFrames) {
  EXPECT_EQ(FirstCredit(1000, 1000), std::nullopt);
  EXPECT_EQ(FirstCredit(1000, 900), std::nullopt);
  EXPECT_EQ(FirstCredit(1000, 1001), 750u) << "the ring's end may waste the rest";
}

TEST(RunRequest, SaysWhatIsWantedAndWhereItGoes) {
  CodecSpec codec;
  codec.name = "scd";
  codec.artifact_hash = "hash";
  v1::Workflow workflow;
  workflow.set_id("report");
  workflow.set_agent("planner");
  workflow.add_next("writer");
  const HandoffSpec spec{.request_id = "r1",
                         .prompt = {7, 8, 9},
                         .codec = std::make_shared<const CodecSpec>(codec),
                         .cache_salt = "salt/1",
                         .tenant = "salt",
                         .workflow = workflow,
                         .max_staleness_ms = 0};
  TicketTerms terms{.epoch = 5, .receiver_address = "here:1", .frame_key = "key", .window_bytes = 64};
  terms.id.fill(0xab);
  v1::RunRequest run = MakeRunRequest(spec, terms, /*frame_times=*/true);
  EXPECT_EQ(run.request_id(), "r1");
  EXPECT_TRUE(run.frame_times());
  EXPECT_EQ(run.cache_salt(), "salt");
  EXPECT_EQ(run.workflow().id(), "report");
  EXPECT_EQ(run.workflow().agent(), "planner");
  EXPECT_THAT(run.workflow().next(), ElementsAre("writer"));
  EXPECT_THAT(run.prompt(), ElementsAre(7, 8, 9));
  EXPECT_TRUE(run.has_max_staleness_ms());
  EXPECT_EQ(run.max_staleness_ms(), 0);
  EXPECT_EQ(run.ticket().id(), std::string(terms.id.size(), '\xab'));
  EXPECT_EQ(run.ticket().epoch(), 5);
  EXPECT_EQ(run.ticket().receiver_address(), "here:1");
  EXPECT_EQ(run.ticket().frame_key(), "key");
  EXPECT_EQ(run.ticket().format().name(), "scd");
  EXPECT_EQ(run.ticket().format().artifact_hash(), "hash");
  EXPECT_EQ(run.ticket().window_bytes(), 0) << "all frames fit";

  terms.credit_bytes = 48;
  run = MakeRunRequest({.codec = std::make_shared<const CodecSpec>(codec)}, terms, /*frame_times=*/false);
  EXPECT_EQ(run.ticket().window_bytes(), 64);
  EXPECT_EQ(run.ticket().credit_bytes(), 48);
  EXPECT_FALSE(run.has_max_staleness_ms());
  EXPECT_FALSE(run.frame_times());
  EXPECT_FALSE(run.has_workflow());
}

}  // namespace
}  // namespace aludel
