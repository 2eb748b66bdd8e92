#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "transport/stat_counters.h"
#include "transport/transport.h"
#include "transport/ucx/progress_thread.h"
#include "transport/ucx/ucx_connection.h"

namespace aludel {

// The callers' side of a UcxConnection. Thread-safe; destroyed by any thread but the progress thread, which
// would wait for itself.
class UcxChannel : public Channel {
 public:
  // `connection` lives until this channel has closed it.
  UcxChannel(ProgressThread* progress, UcxConnection* connection, std::string lanes,
             std::shared_ptr<UcxChannelState> state, StatCounters* counters, uint64_t sender_id,
             int max_inflight_sends);
  ~UcxChannel() override;

  void Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
            std::function<void(absl::Status)> done) override;
  bool healthy() const override { return state_->healthy; }
  std::string lanes() const override { return lanes_; }

 private:
  // Takes a place among the unfinished sends, or says why there is none.
  absl::Status Reserve(size_t header_bytes);

  ProgressThread* const progress_;
  UcxConnection* const connection_;  // touched by the progress thread only
  const std::string lanes_;
  const std::shared_ptr<UcxChannelState> state_;
  StatCounters* const counters_;
  const uint64_t sender_id_;
  const int max_inflight_sends_;
};

}  // namespace aludel
