#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/stat_counters.h"
#include "transport/transport.h"
#include "transport/transport_options.h"
#include "transport/transport_stats.h"
#include "transport/ucx/progress_thread.h"
#include "transport/ucx/ucx_context.h"

namespace aludel {

// The thread-safe face of a UcxNode: turns calls into commands for its progress thread.
class UcxTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Open(const TransportOptions& options,
                                                         MessageHandler* handler);

  std::string address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Channel>> Connect(absl::string_view address,
                                                   absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> Allocate(size_t bytes) override;
  absl::Duration ProgressSilence() override { return progress_->Silence(); }
  TransportStats stats() const override { return counters_->Snapshot(); }
  bool reaches_gpu_memory() const override { return context_->ReachesGpuMemory(); }

 private:
  explicit UcxTransport(const TransportOptions& options) : max_inflight_sends_(options.max_inflight_sends) {}

  const int max_inflight_sends_;
  const std::unique_ptr<StatCounters> counters_ = std::make_unique<StatCounters>();
  std::string address_;
  uint64_t endpoint_id_ = 0;
  // Destroyed from the last to the first: the thread with its node, then the context.
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<ProgressThread> progress_;
};

}  // namespace aludel
