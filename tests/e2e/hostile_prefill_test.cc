#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "runtime/codec/frame.h"
#include "runtime/model/model_config.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/handoff/identity.h"
#include "server/host/model_host.h"
#include "server/rpc/rpc_status.h"
#include "tests/e2e/fleet.h"
#include "transport/open_transport.h"
#include "transport/transport.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr size_t kTokenBytes = 512;  // of one layer of the demo model, raw

class NoMessages : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t) override { return {}; }
  void OnPayload(MessageId, absl::Status) override {}
};

// A prefill server in this process that introduces itself well and then does what a test wants.
class FakePrefill : public v1::Prefill::Service {
 public:
  using Behavior = std::function<absl::Status(FakePrefill&, grpc::ServerContext&, const v1::RunRequest&)>;

  explicit FakePrefill(const std::string& kind) {
    const ModelConfig config = *ModelConfig::Load("deploy/demo/base");
    description_.set_protocol_version(kHandoffVersion);
    const auto tokenizer = *Tokenizer::Load("deploy/demo/base");
    *description_.mutable_model() =
        ToProto(IdentityOf(config, "", {tokenizer->fingerprint(), tokenizer->vocabulary_fingerprint()}, 0));
    description_.add_formats()->set_name("raw");
    transport_ = *OpenTransport({.kind = kind,
                                 .accepts = false,
                                 .ucx_transports = kind == "ucx" ? "tcp" : "",
                                 .ucx_devices = kind == "ucx" ? "lo" : ""},
                                &no_messages_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakePrefill() override { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  void Behave(Behavior behavior) {
    absl::MutexLock lock(&mutex_);
    behavior_ = std::move(behavior);
  }

  // A frame of one layer that the ticket allows; a test spoils it.
  static FrameHeader Frame(const v1::RunRequest& request) {
    FrameHeader header;
    const std::string& id = request.ticket().id();
    std::copy(id.begin(), id.end(), header.ticket.begin());
    header.epoch = request.ticket().epoch();
    header.coverage = {.tokens = 4};
    return header;
  }
  static std::vector<uint8_t> Payload() { return std::vector<uint8_t>(4 * kTokenBytes, 0x3c); }

  // Sends a message. Its channel stays open, as closing may lose small messages on their way.
  void Send(const v1::RunRequest& request, absl::Span<const uint8_t> header,
            absl::Span<const uint8_t> payload) {
    auto channel = transport_->Connect(request.ticket().receiver_address(), absl::Seconds(10));
    ASSERT_TRUE(channel.ok()) << channel.status();
    absl::Notification done;
    (*channel)->Send(header, payload, [&](const absl::Status&) { done.Notify(); });
    done.WaitForNotification();
    absl::MutexLock lock(&mutex_);
    channels_.push_back(*std::move(channel));
  }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::PrefillDescription* response) override {
    *response = description_;
    return grpc::Status::OK;
  }
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::RunEvent>*) override {
    Behavior behavior;
    {
      absl::MutexLock lock(&mutex_);
      behavior = behavior_;
    }
    return ToGrpc(behavior(*this, *context, *request));
  }

 private:
  NoMessages no_messages_;
  std::unique_ptr<Transport> transport_;
  v1::PrefillDescription description_;
  absl::Mutex mutex_;
  Behavior behavior_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Channel>> channels_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A real decode server of the demo model that trusts a FakePrefill. Whatever that does, the answer must be
// the one that the decode server gives by itself.
class HostilePrefill : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (int i = 0; i < 100; ++i) prompt_.push_back(10 + (i * 37) % 2000);
    ASSERT_TRUE(fleet_.Start());
    v1::GenerateRequest request = Fleet::Request(prompt_, 6, "");
    request.set_fidelity(v1::FIDELITY_EXACT);
    const Answer local = fleet_.Ask(request);
    ASSERT_TRUE(local.status.ok()) << local.status;
    expected_ = local.tokens;
  }

  // The reason for which the handoff was given up.
  std::string FallbackReason(FakePrefill::Behavior behavior) {
    prefill_.Behave(std::move(behavior));
    const Answer answer = fleet_.Ask(Fleet::Request(prompt_, 6));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "fallback");
    EXPECT_EQ(answer.tokens, expected_);
    EXPECT_LT(answer.took, absl::Seconds(8));
    EXPECT_TRUE(fleet_.DecodeIsIdle());
    return answer.started.fallback_reason();
  }
  // One frame, for this reason.
  bool WaitDropped(const std::string& reason) {
    return fleet_.decode().WaitMetric(absl::StrCat("aludel_frames_dropped_total{reason=\"", reason, "\"}"),
                                      1);
  }
  static absl::Status WaitForCancel(grpc::ServerContext& context) {
    while (!context.IsCancelled()) absl::SleepFor(absl::Milliseconds(10));
    return absl::CancelledError("");
  }

  FakePrefill prefill_{GetParam()};
  Fleet fleet_{{.ucx_transports = GetParam() == std::string("ucx") ? "tcp" : "",
                .handoff_timeout_ms = 2000,
                .prefill_port = prefill_.port()}};
  std::vector<int32_t> prompt_;
  std::vector<int32_t> expected_;
};

TEST_P(HostilePrefill, ACorruptFrameNeverBecomesTokens) {
  const std::string reason = FallbackReason([](FakePrefill& self, auto& context, const auto& request) {
    std::vector<uint8_t> payload = FakePrefill::Payload();
    const auto header = EncodeFrameHeader(FakePrefill::Frame(request), payload);
    payload[100] ^= 0x40;
    self.Send(request, header, payload);
    return WaitForCancel(context);
  });
  EXPECT_THAT(reason, HasSubstr("DATA_LOSS"));
  EXPECT_EQ(fleet_.decode().Metric("aludel_engine_events_total{event=\"frame_rejected\",model=\"demo\"}"), 1);
}

TEST_P(HostilePrefill, AnOversizedFrameIsRefusedBeforeItTakesMemory) {
  const std::string reason = FallbackReason([](FakePrefill& self, auto& context, const auto& request) {
    const std::vector<uint8_t> payload(16 << 20);
    self.Send(request, EncodeFrameHeader(FakePrefill::Frame(request), payload), payload);
    return WaitForCancel(context);
  });
  EXPECT_THAT(reason, HasSubstr("payload is 16777216 bytes, want at most 2048 for 4 tokens"));
  EXPECT_TRUE(WaitDropped("oversize"));
}

TEST_P(HostilePrefill, ForgedTicketsAndGarbageAreCountedAndHarmNobody) {
  const std::string reason = FallbackReason([this](FakePrefill& self, auto&, const auto& request) {
    FrameHeader forged = FakePrefill::Frame(request);
    forged.ticket[0] ^= 1;
    const std::vector<uint8_t> payload = FakePrefill::Payload();
    self.Send(request, EncodeFrameHeader(forged, payload), payload);
    FrameHeader former = FakePrefill::Frame(request);
    former.epoch ^= 1;
    self.Send(request, EncodeFrameHeader(former, payload), payload);
    self.Send(request, std::vector<uint8_t>(100, 0x5a), payload);
    // While the ticket lives: after its death each of its frames is of an unknown one.
    for (const char* dropped : {"unknown_ticket", "epoch", "malformed"}) EXPECT_TRUE(WaitDropped(dropped));
    return absl::ResourceExhaustedError("no room");
  });
  EXPECT_EQ(reason, "RESOURCE_EXHAUSTED: no room");
}

TEST_P(HostilePrefill, AFrameAfterItsTicketHasDiedIsDropped) {
  v1::RunRequest replayed;
  FallbackReason([&](FakePrefill&, auto&, const auto& request) {
    replayed = request;
    return absl::UnavailableError("gone");
  });
  const std::vector<uint8_t> payload = FakePrefill::Payload();
  prefill_.Send(replayed, EncodeFrameHeader(FakePrefill::Frame(replayed), payload), payload);
  EXPECT_TRUE(WaitDropped("unknown_ticket"));
  EXPECT_TRUE(fleet_.DecodeIsIdle());
}

TEST_P(HostilePrefill, ARunThatSendsNothingIsGivenUpAtTheDeadline) {
  EXPECT_THAT(FallbackReason([](FakePrefill&, auto& context, const auto&) { return WaitForCancel(context); }),
              HasSubstr("DEADLINE_EXCEEDED"));
  ASSERT_TRUE(fleet_.WaitPrefillState("ready"));
  // "Finished", without one frame.
  EXPECT_THAT(FallbackReason([](FakePrefill&, auto&, const auto&) { return absl::OkStatus(); }),
              HasSubstr("DEADLINE_EXCEEDED"));
}

INSTANTIATE_TEST_SUITE_P(Over, HostilePrefill, ::testing::Values("tcp", "ucx"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace aludel
