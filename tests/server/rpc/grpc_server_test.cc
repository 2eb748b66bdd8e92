#include "server/rpc/grpc_server.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "server/rpc/event_stream.h"
#include "server/rpc/rpc_status.h"
#include "tests/testing/server_process.h"

namespace aludel {
namespace {

using Stream = EventStream<v1::GenerateEvent>;
constexpr int kMaxCalls = 3;

// Takes calls as the servers do, says so in one event, and keeps them until they are canceled.
class Keeper : public v1::Decode::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext* call,
                                                        const v1::GenerateRequest*) override {
    auto target = std::make_shared<std::weak_ptr<Stream>>();
    auto stream = Stream::Create(call, 1, [target] {
      if (const auto held = target->lock()) held->End(grpc::Status::CANCELLED);
    });
    *target = stream;
    std::shared_ptr<const CallLimit::Place> place = calls_.Take();
    if (place == nullptr) {
      stream->End(ToGrpc(calls_.Full()));
      return stream.get();
    }
    stream->Hold(std::move(place));
    stream->Push({});
    return stream.get();
  }

 private:
  const CallLimit calls_{kMaxCalls};
};

// As a load balancer asks: grpc.health.v1.Health/Check of the whole server.
bool IsServing(const std::string& target) {
  grpc::GenericStub stub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);  // of no service in particular
  grpc::CompletionQueue queue;
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice bytes;
  if (!ok || !status.ok() || !response.DumpToSingleSlice(&bytes).ok()) return false;
  return std::string(bytes.begin(), bytes.end()) == "\x08\x01";  // status: SERVING
}

class GrpcServerTest : public ::testing::Test {
 protected:
  // A call over a connection of its own, until it dies.
  struct Call {
    explicit Call(const std::string& target) {
      grpc::ChannelArguments alone;
      alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stub =
          v1::Decode::NewStub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), alone));
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      reader = stub->Generate(&context, {});
      v1::GenerateEvent event;
      began = reader->Read(&event);
    }
    ~Call() {
      context.TryCancel();
      if (!ended) reader->Finish();
    }
    grpc::Status End() {
      ended = true;
      return reader->Finish();
    }
    std::unique_ptr<v1::Decode::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
    bool began = false;
    bool ended = false;
  };

  const std::string target_ = absl::StrCat("127.0.0.1:", FreePort());
  Keeper keeper_;
  const std::unique_ptr<grpc::Server> server_ =
      StartGrpcServer(target_, {}, {.max_calls = kMaxCalls}, {&keeper_}).value();
};

TEST_F(GrpcServerTest, RefusesCallsBeyondItsLimitAndAnswersHealthChecks) {
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kMaxCalls; ++i) {
    calls.push_back(std::make_unique<Call>(target_));
    ASSERT_TRUE(calls.back()->began);
  }
  {
    Call more(target_);
    EXPECT_FALSE(more.began);
    const grpc::Status status = more.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(status.error_message(), "this server has 3 calls in progress already");
  }
  EXPECT_TRUE(IsServing(target_));
  // The place is given back when gRPC is done with the call, which is soon after its client is.
  calls.pop_back();
  bool again = false;
  for (int tries = 0; !again && tries < 1000; ++tries) again = Call(target_).began;
  EXPECT_TRUE(again);
}

}  // namespace
}  // namespace aludel
