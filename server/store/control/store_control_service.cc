#include "server/store/control/store_control_service.h"

#include <utility>

#include "absl/status/status.h"
#include "aludel/v1/store.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/rpc_status.h"

namespace aludel {
namespace {

using Reactor = grpc::ServerUnaryReactor;
using Call = grpc::CallbackServerContext;

class StoreControlService : public v1::StoreControl::CallbackService {
 public:
  StoreControlService(StoreCommands commands, const TokenHash& token_sha256, WorkClock* handlers)
      : commands_(std::move(commands)), token_sha256_(token_sha256), handlers_(handlers) {}

  Reactor* Lookup(Call* call, const v1::LookupRequest* request, v1::LookupResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Lookup);
  }
  Reactor* Prefetch(Call* call, const v1::PrefetchRequest* request, v1::PrefetchResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Prefetch);
  }
  Reactor* Pin(Call* call, const v1::PinRequest* request, v1::PinResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Pin);
  }
  Reactor* Unpin(Call* call, const v1::UnpinRequest* request, v1::UnpinResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Unpin);
  }
  Reactor* Clear(Call* call, const v1::ClearRequest* request, v1::ClearResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Clear);
  }
  Reactor* List(Call* call, const v1::ListRequest* request, v1::ListResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::List);
  }
  Reactor* Tenants(Call* call, const v1::TenantsRequest* request, v1::TenantsResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Tenants);
  }
  Reactor* Quota(Call* call, const v1::QuotaRequest* request, v1::QuotaResponse* response) override {
    return Answer(call, *request, response, &StoreCommands::Quota);
  }

 private:
  template <typename Request, typename Response>
  using Command = void (StoreCommands::*)(const Request&, StoreCommands::Done<Response>) const;

  // The call lives until it is finished, which may be on a thread of the store.
  template <typename Request, typename Response>
  Reactor* Answer(Call* call, const Request& request, Response* response,
                  Command<Request, Response> command) const {
    const WorkClock::Work work(handlers_);
    Reactor* const reactor = call->DefaultReactor();
    if (!HasToken(*call)) {
      reactor->Finish(ToGrpc(absl::UnauthenticatedError(
          "want the metadata \"authorization: Bearer TOKEN\" with the token of store.control_token_sha256")));
      return reactor;
    }
    (commands_.*command)(request, [reactor, response](absl::StatusOr<Response> answer) {
      if (answer.ok()) *response = *std::move(answer);
      reactor->Finish(ToGrpc(answer.status()));
    });
    return reactor;
  }
  // Of several, the first counts.
  bool HasToken(const Call& call) const {
    const auto found = call.client_metadata().find("authorization");
    if (found == call.client_metadata().end()) return false;
    return aludel::HasToken({found->second.data(), found->second.size()}, token_sha256_);
  }

  const StoreCommands commands_;
  const TokenHash token_sha256_;
  WorkClock* const handlers_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeStoreControlService(StoreCommands commands, const TokenHash& token_sha256,
                                                       WorkClock* handlers) {
  return std::make_unique<StoreControlService>(std::move(commands), token_sha256, handlers);
}

}  // namespace aludel
