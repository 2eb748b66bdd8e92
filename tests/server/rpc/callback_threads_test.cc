#include "server/rpc/callback_threads.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

std::shared_ptr<grpc::Channel> ChannelToNothing() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // does not wait for the backoff of channels before it
  return grpc::CreateCustomChannel("unix:/dev/null/none", grpc::InsecureChannelCredentials(), arguments);
}

// A call that owns the only channel there is.
struct Call {
  grpc::GenericStub stub{ChannelToNothing()};
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer reply;
};

TEST(CallbackThreads, TheLastChannelMayGoOnOneOfThem) {
  KeepCallbackThreads();
  for (int i = 0; i < 50; ++i) {
    absl::Notification ended;
    auto call = std::make_shared<Call>();
    Call* const raw = call.get();
    raw->stub.UnaryCall(&raw->context, "/aludel/Nothing", grpc::StubOptions(), &raw->request, &raw->reply,
                        [call = std::move(call), &ended](const grpc::Status& status) mutable {
                          EXPECT_FALSE(status.ok());
                          call.reset();
                          ended.Notify();
                        });
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  }
}

}  // namespace
}  // namespace aludel
