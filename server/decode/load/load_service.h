#pragma once

#include <string>
#include <vector>

#include "aludel/v1/load.grpc.pb.h"
#include "server/decode/load/load_reporter.h"

namespace aludel {

// The Load service of a decode server. A call is answered at once, so that the time of asking bounds how old the answer is
// on the gateway's own clock; a stream that is pushed would have no such bound. Thread-safe.
class LoadService : public v1::Load::CallbackService {
 public:
  // Both must outlive the service. `identities`: of callers (CheckCaller).
  LoadService(const LoadReporter* reporter, const std::vector<std::string>* identities)
      : reporter_(reporter), identities_(identities) {}

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* call, const v1::LoadRequest* request,
                                   v1::LoadReport* response) override;

 private:
  const LoadReporter* const reporter_;
  const std::vector<std::string>* const identities_;
};

}  // namespace aludel
