#pragma once

#include <memory>
#include <string>

#include "transport/loopback/loopback_node.h"
#include "transport/stat_counters.h"
#include "transport/transport.h"
#include "transport/transport_options.h"
#include "transport/transport_stats.h"

namespace aludel {

// Moves messages between transports of one process by copying. The same contract as between processes,
// without sockets: for tests, and for prefill and decode in one process. `done` comes from the
// receiver's thread.
class LoopbackTransport : public Transport {
 public:
  LoopbackTransport(const TransportOptions& options, MessageHandler* handler);
  ~LoopbackTransport() override;

  std::string address() const override;
  absl::StatusOr<std::unique_ptr<Channel>> Connect(absl::string_view address,
                                                   absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> Allocate(size_t bytes) override;
  // Its thread does nothing but run the handler.
  absl::Duration ProgressSilence() override { return absl::ZeroDuration(); }
  TransportStats stats() const override { return counters_.Snapshot(); }

 private:
  const TransportOptions options_;
  const uint64_t endpoint_id_;
  StatCounters counters_;
  const std::shared_ptr<LoopbackNode> node_;
};

}  // namespace aludel
