#include "server/store/control/store_operator_api.h"

#include "runtime/status_macros.h"
#include "server/store/control/store_api.h"
#include "server/store/control/store_control_service.h"

namespace aludel {

absl::StatusOr<StoreOperatorApi> StoreOperatorApi::Make(const std::string& token_sha256, PrefixStore* store,
                                                        FindFormat find_format) {
  std::optional<TokenHash> token;
  if (!token_sha256.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(token, ParseSha256(token_sha256));
  }
  return StoreOperatorApi(token, StoreCommands({.store = store, .find_format = std::move(find_format)}));
}

void StoreOperatorApi::AddTo(AdminServer::Checks* checks) const {
  if (!token_) return;
  const StoreApi api({.commands = commands_, .token_sha256 = *token_});
  checks->more = [api](const HttpRequest& request) { return api.Answer(request); };
  checks->more_path = StoreApi::kPath;
  checks->check_head = [api](const HttpRequest& head) { return api.CheckHead(head); };
  checks->max_body_bytes = StoreApi::kMaxBodyBytes;
}

std::unique_ptr<grpc::Service> StoreOperatorApi::NewService(WorkClock* handlers) const {
  return token_ ? MakeStoreControlService(commands_, *token_, handlers) : nullptr;
}

}  // namespace aludel
