#include "server/decode/plan/prefill_pool.h"

#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/host/model_host.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A consumer with formats "aludel" and "raw", and a producer that fits it.
class Compatible : public ::testing::Test {
 protected:
  Compatible() {
    model_.set_layers(8);
    model_.set_kv_heads(4);
    model_.set_head_dim(32);
    model_.set_tokenizer_fingerprint("t0");
    model_.set_vocabulary_fingerprint("v0");
    model_.set_rope("theta 500000");
    formats_.resize(2);
    formats_[0].set_name("aludel");
    formats_[0].set_artifact_hash("a0");
    formats_[1].set_name("raw");
    *peer_.mutable_model() = model_;
    peer_.set_protocol_version(kHandoffVersion);
    for (int i = 1; i >= 0; --i) *peer_.add_formats() = formats_[i];
  }
  std::string Refusal() { return std::string(CheckCompatible(model_, formats_, peer_, &shared_).message()); }
  v1::ModelIdentity model_;
  std::vector<v1::WireFormat> formats_;
  v1::PrefillDescription peer_;
  std::vector<std::string> shared_;
};

TEST_F(Compatible, SharedFormatsComeInTheConsumersOrder) {
  EXPECT_EQ(Refusal(), "");
  EXPECT_THAT(shared_, ElementsAre("aludel", "raw"));
}

TEST_F(Compatible, AFormatOfAnotherArtifactIsNotShared) {
  peer_.mutable_formats(1)->set_artifact_hash("a1");
  EXPECT_EQ(Refusal(), "");
  EXPECT_THAT(shared_, ElementsAre("raw"));
  peer_.mutable_formats()->RemoveLast();
  peer_.mutable_formats(0)->set_name("other");
  EXPECT_EQ(Refusal(), "no format in common: it has other@, want one of aludel@a0, raw@");
}

TEST_F(Compatible, AMismatchIsRefusedWithFoundAndExpected) {
  peer_.set_protocol_version(kHandoffVersion + 1);
  EXPECT_EQ(Refusal(), absl::StrCat("protocol version is ", kHandoffVersion + 1, ", want ", kHandoffVersion));
  peer_.set_protocol_version(kHandoffVersion);
  peer_.mutable_model()->set_tokenizer_fingerprint("t1");
  EXPECT_EQ(Refusal(), "") << "of another tokenizer with the same vocabulary";
  peer_.mutable_model()->set_vocabulary_fingerprint("v1");
  EXPECT_EQ(Refusal(), "vocabulary fingerprint is v1, want v0");
  *peer_.mutable_model() = model_;
  peer_.mutable_model()->set_kv_heads(8);
  EXPECT_EQ(Refusal(), "kv_heads is 8, want 4");
  peer_.mutable_model()->set_layers(9);
  EXPECT_EQ(Refusal(), "layers is 9, want 8; kv_heads is 8, want 4");
  *peer_.mutable_model() = model_;
  peer_.mutable_model()->set_rope("theta 10000");
  EXPECT_EQ(Refusal(), "") << "K travels before it is rotated";
}

// A prefill server that only describes itself.
class FakePrefill : public v1::Prefill::Service {
 public:
  explicit FakePrefill(v1::PrefillDescription description) : description_(std::move(description)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    target_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakePrefill() override { server_->Shutdown(); }
  const std::string& target() const { return target_; }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::PrefillDescription* reply) override {
    absl::MutexLock lock(&mutex_);
    *reply = description_;
    return grpc::Status::OK;
  }
  // As a process that is so old.
  void Restart(double age_seconds) {
    absl::MutexLock lock(&mutex_);
    description_.set_epoch(description_.epoch() + 1);
    description_.set_age_seconds(age_seconds);
  }

 private:
  absl::Mutex mutex_;
  v1::PrefillDescription description_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

class PrefillPoolTest : public Compatible {
 protected:
  void AwaitReady(const PrefillPool& pool, const std::vector<bool>& want) {
    std::vector<bool> ready;
    for (int i = 0; i < 1000 && ready != want; ++i) {
      ready.clear();
      for (const PlanTarget& target : pool.Snapshot()) ready.push_back(target.ready);
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(ready, want);
  }

  FakePrefill a_{peer_}, b_{peer_};
  Timer timer_;
  Metrics metrics_;
  PrefillPool pool_{{.targets = {a_.target()},
                     .probe_interval = absl::Milliseconds(10),
                     .probe_max_interval = absl::Milliseconds(20),
                     .probe_timeout = absl::Seconds(5),
                     .model = model_,
                     .formats = formats_},
                    &timer_,
                    &metrics_};
};

TEST_F(PrefillPoolTest, HandoffsThatAreAskedForCallForServers) {
  AwaitReady(pool_, {true});
  const absl::Time begin = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_EQ(pool_.Desired(begin), 0);
  for (int i = 0; i < 60; ++i) {
    pool_.EndRun(0, 3'500, pool_.BeginRun(0, 3'500, 0), 0);
  }
  pool_.ReportLoad(0, 0, 1'000);
  // 3,500 a second for a minute, of 700 for a server, of which the mean has the part that a minute brings.
  EXPECT_NEAR(pool_.Desired(begin + absl::Minutes(1)), 5 * (1 - std::exp(-1)), 0.01);
}

TEST_F(PrefillPoolTest, WhatIsComputedWaitsNowhere) {
  AwaitReady(pool_, {true});
  const SiteLinks::Use use = pool_.BeginRun(0, 500'000, 0);
  EXPECT_GE(pool_.Snapshot()[0].waiting_tokens, 500'000);
  pool_.Computed(0, 500'000);
  EXPECT_LT(pool_.Snapshot()[0].waiting_tokens, 500'000) << "though its run still sends";
  pool_.EndRun(0, 0, use, 0);
}

TEST_F(PrefillPoolTest, ServersComeAndGo) {
  AwaitReady(pool_, {true});
  EXPECT_THAT(pool_.SetTargets({ServerName(a_.target()), ServerName(b_.target())}), ::testing::IsEmpty());
  AwaitReady(pool_, {true, true});
  // Its index stays its own, for a run that is there or a plan that is made for it.
  EXPECT_THAT(pool_.SetTargets({ServerName(b_.target())}), ElementsAre(a_.target()));
  AwaitReady(pool_, {false, true});
  EXPECT_TRUE(pool_.Snapshot()[0].gone);
  EXPECT_FALSE(pool_.Snapshot()[1].gone);
  EXPECT_THAT(pool_.Servers(), ElementsAre(::testing::Pair(b_.target(), &pool_.stub(1))));
  EXPECT_THAT(metrics_.Render(), ::testing::Not(HasSubstr(a_.target())));
  const SiteLinks::Use use = pool_.BeginRun(0, 10, 0);
  pool_.ReportRunFailure(0, absl::UnavailableError("gone"));
  pool_.EndRun(0, 10, use, 0);
  AwaitReady(pool_, {false, true});
  EXPECT_THAT(metrics_.Render(), ::testing::Not(HasSubstr(a_.target())));
  pool_.SetTargets({ServerName(b_.target()), ServerName(a_.target())});
  AwaitReady(pool_, {true, true});
  EXPECT_EQ(pool_.Snapshot()[0].name, a_.target());
  EXPECT_THAT(metrics_.Render(), HasSubstr(a_.target()));
}

TEST_F(PrefillPoolTest, WhereRunsFailIsLeftOutThoughItAnswersProbes) {
  pool_.SetTargets({ServerName(a_.target()), ServerName(b_.target())});
  AwaitReady(pool_, {true, true});
  const absl::Status bad = absl::DataLossError("3 of 4 frames have arrived");
  for (int i = 0; i < 2; ++i) pool_.ReportRunFailure(0, bad);
  pool_.ReportRunFailure(0, absl::ResourceExhaustedError("full"));
  pool_.ReportRunFailure(0, absl::CancelledError("not wanted"));
  EXPECT_TRUE(pool_.Snapshot()[0].ready) << "what it refuses and what is given up are no failures";
  pool_.ReportRunSuccess(0);
  for (int i = 0; i < 2; ++i) pool_.ReportRunFailure(0, bad);
  EXPECT_TRUE(pool_.Snapshot()[0].ready) << "not three in a row";
  pool_.ReportRunFailure(0, bad);
  EXPECT_FALSE(pool_.Snapshot()[0].ready);
  EXPECT_TRUE(pool_.Snapshot()[1].ready);
  absl::SleepFor(absl::Milliseconds(100));  // several probes
  EXPECT_FALSE(pool_.Snapshot()[0].ready);
  EXPECT_THAT(metrics_.Render(), HasSubstr("\naludel_prefill_ejections_total 1\n"));
  // Where all fail, none is left out for it.
  for (int i = 0; i < 3; ++i) pool_.ReportRunFailure(1, bad);
  AwaitReady(pool_, {true, true});
  pool_.ReportRunSuccess(1);
  AwaitReady(pool_, {false, true});
  // Another process is another server.
  a_.Restart(0);
  AwaitReady(pool_, {true, true});
}

TEST_F(PrefillPoolTest, OneThatHasJustStartedHasASmallWeight) {
  a_.Restart(1'000);
  b_.Restart(10);
  pool_.SetTargets({ServerName(a_.target()), ServerName(b_.target())});
  AwaitReady(pool_, {true, true});
  const auto await = [&](size_t target, double least, double most) {
    double weight = 0;
    for (int i = 0; i < 1000 && !(weight >= least && weight <= most); ++i) {
      weight = pool_.Snapshot()[target].weight;
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_GE(weight, least);
    EXPECT_LE(weight, most);
  };
  await(0, 1, 1);
  await(1, 0.3, 0.5);
  // So has one that is started again, and not where the other one is as new.
  a_.Restart(1);
  await(1, 1, 1);
  await(0, 0.25, 0.5);
  b_.Restart(1);
  await(1, 1, 1);
  await(0, 1, 1);
}

TEST_F(PrefillPoolTest, FormatsOfTwoArtifactsAreSharedByTheirEncoders) {
  AwaitReady(pool_, {true});
  using Offers = std::vector<FormatOffer>;
  EXPECT_EQ(pool_.Snapshot()[0].offers, (Offers{{"aludel", "a0"}, {"raw", ""}}));
  // Behind a switch here, which the prefill server has not seen.
  std::vector<v1::WireFormat> both = formats_;
  both[0].set_artifact_hash("a1");
  both.push_back(formats_[0]);
  pool_.SetFormats(both);
  EXPECT_EQ(pool_.Snapshot()[0].offers, (Offers{{"raw", ""}, {"aludel", "a0"}}));
  EXPECT_THAT(pool_.Snapshot()[0].formats, ElementsAre("raw", "aludel"));
  both.pop_back();
  pool_.SetFormats(both);
  EXPECT_EQ(pool_.Snapshot()[0].offers, (Offers{{"raw", ""}}));
  AwaitReady(pool_, {true});
}

}  // namespace
}  // namespace aludel
