#include "server/rpc/callback_threads.h"

#include <memory>

#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"

namespace aludel {
namespace {

// A channel counts as a user of the threads from its first call with a callback on.
struct Holder {
  Holder() {
    stub.UnaryCall(&context, "/aludel/Nothing", grpc::StubOptions(), &request, &reply,
                   [](const grpc::Status&) {});
    context.TryCancel();
  }

  grpc::GenericStub stub{grpc::CreateChannel("unix:/dev/null/none", grpc::InsecureChannelCredentials())};
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer reply;
};

}  // namespace

void KeepCallbackThreads() {
  static Holder* const holder = new Holder();
  static_cast<void>(holder);
}

}  // namespace aludel
