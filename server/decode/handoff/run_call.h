#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"

namespace aludel {

// The client's end of one Prefill.Run. Owns itself until gRPC is done with it. Callbacks come from gRPC's
// threads, events in order, the end exactly once and last.
class RunCall : public grpc::ClientReadReactor<v1::RunEvent> {
 public:
  struct Callbacks {
    std::function<void(const v1::RunEvent&)> on_event;
    std::function<void(const absl::Status&)> on_end;
  };

  // `deadline` is one of MonotonicNow(). `stub` must live until the end. `traceparent`, where not empty, goes
  // along as metadata.
  static std::shared_ptr<RunCall> Start(v1::Prefill::Stub& stub, v1::RunRequest request, absl::Time deadline,
                                        Callbacks callbacks, const std::string& traceparent = "");
  // The end follows, with Cancelled unless it came by itself.
  void Cancel() { context_.TryCancel(); }

 private:
  RunCall(v1::RunRequest request, absl::Time deadline, Callbacks callbacks);
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const v1::RunRequest request_;
  const Callbacks callbacks_;
  grpc::ClientContext context_;
  v1::RunEvent event_;
  std::shared_ptr<RunCall> self_;
};

}  // namespace aludel
