#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "transport/command_queue.h"
#include "transport/stat_counters.h"
#include "transport/tcp/tcp_node.h"
#include "transport/transport.h"
#include "transport/transport_options.h"
#include "transport/transport_stats.h"

namespace aludel {

// One TCP connection for each channel, under TLS where the options have certificates (PROTOCOL.md). The
// thread-safe face of a TcpNode: turns calls into commands for the thread that runs it.
class TcpTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Open(const TransportOptions& options,
                                                         MessageHandler* handler);
  ~TcpTransport() override;

  std::string address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Channel>> Connect(absl::string_view address,
                                                   absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> Allocate(size_t bytes) override;
  absl::Duration ProgressSilence() override;
  TransportStats stats() const override { return counters_.Snapshot(); }

 private:
  friend class TcpChannel;
  explicit TcpTransport(const TransportOptions& options) : max_inflight_sends_(options.max_inflight_sends) {}
  void Run();

  const int max_inflight_sends_;
  StatCounters counters_;
  std::string address_;
  std::unique_ptr<TcpNode> node_;  // the progress thread's
  std::unique_ptr<CommandQueue> commands_;
  bool stopping_ = false;           // progress thread only
  std::atomic<bool> asked_{false};  // and not answered
  std::atomic<int64_t> asked_at_ns_{0};
  std::thread thread_;
};

}  // namespace aludel
