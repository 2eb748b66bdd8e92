#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "runtime/codec/codec.h"
#include "server/observe/admin.h"
#include "server/process/work_clock.h"
#include "server/store/control/operator_token.h"
#include "server/store/control/store_commands.h"
#include "server/store/prefix_store.h"

namespace aludel {

// An operator's two ways to a server's prefix store, HTTP on the admin port and gRPC; neither where the configuration has
// no token.
class StoreOperatorApi {
 public:
  // Null for an unknown name.
  using FindFormat = std::function<std::shared_ptr<const CodecSpec>(absl::string_view name)>;

  // InvalidArgument where `token_sha256` is neither "" nor 64 hexadecimal digits. `store` must outlive
  // all that is made here.
  static absl::StatusOr<StoreOperatorApi> Make(const std::string& token_sha256, PrefixStore* store,
                                               FindFormat find_format);

  void AddTo(AdminServer::Checks* checks) const;
  // Null without a token.
  std::unique_ptr<grpc::Service> NewService(WorkClock* handlers) const;

 private:
  StoreOperatorApi(std::optional<TokenHash> token, StoreCommands commands)
      : token_(std::move(token)), commands_(std::move(commands)) {}

  std::optional<TokenHash> token_;
  StoreCommands commands_;
};

}  // namespace aludel
