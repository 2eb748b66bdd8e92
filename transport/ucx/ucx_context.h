#pragma once

#include <ucp/api/ucp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

// Owns a ucp_context_h: which transports and devices are used, and how. Every setting that our guarantees
// rest on is fixed in Open, over whatever the environment says. Outlives the worker and all memory made from
// it. The handle may be used from any thread.
class UcxContext {
 public:
  static absl::StatusOr<std::unique_ptr<UcxContext>> Open(const TransportOptions& options);
  ~UcxContext() { ucp_cleanup(context_); }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h handle() const { return context_; }
  // Whether this UCX was built with CUDA, and found a driver.
  bool ReachesGpuMemory() const;

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}

  const ucp_context_h context_;
};

}  // namespace aludel
