#pragma once

#include <memory>

#include "grpcpp/impl/codegen/service_type.h"
#include "server/process/work_clock.h"
#include "server/store/control/operator_token.h"
#include "server/store/control/store_commands.h"

namespace aludel {

// The StoreControl service: an operator's hold on a prefix store over gRPC, for callers with the token. Thread-safe; must
// outlive its server. `handlers`, which must outlive it, is told of the work on gRPC's threads.
std::unique_ptr<grpc::Service> MakeStoreControlService(StoreCommands commands, const TokenHash& token_sha256,
                                                       WorkClock* handlers);

}  // namespace aludel
