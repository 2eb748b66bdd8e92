#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/pacer.h"
#include "transport/stat_counters.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/wire.h"

namespace aludel {

// What a channel's callers and the progress thread both look at.
struct UcxChannelState {
  std::atomic<bool> healthy{true};
  std::atomic<int> unfinished{0};  // sends, from Send until just before their `done`
};

// One message on its way out.
struct UcxSend {
  WireHeader wire;
  absl::Span<const uint8_t> payload;
  std::function<void(absl::Status)> done;
  absl::Time due;  // when the emulated link has carried it
};

// The sending side of one channel: paces messages, gives them to UCX in order, and completes each exactly
// once. Belongs to the progress thread. After BeginClose it lives until closed().
class UcxConnection {
 public:
  UcxConnection(std::unique_ptr<UcxEndpoint> endpoint, double bytes_per_second, StatCounters* counters);
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  // May outlive the connection.
  const std::shared_ptr<UcxChannelState>& state() const { return state_; }
  const std::string& lanes() const { return lanes_; }

  void Queue(std::unique_ptr<UcxSend> send);

  // Hands on what is due, notices a dead peer; says when it wants to be called next.
  absl::Time Advance(absl::Time now);

  // Cancels everything that is unfinished.
  void BeginClose();
  bool closed() const { return in_flight_.empty() && (endpoint_->closed() || abandoned_); }
  // After closed(): what must be kept until it is closed itself, or the worker is gone.
  std::unique_ptr<UcxEndpoint> TakeEndpoint() { return std::move(endpoint_); }

  static constexpr absl::Duration kAbandonAfter = absl::Milliseconds(250);

 private:
  struct InFlight;

  void CloseEndpoint();
  void Start(std::unique_ptr<UcxSend> send);
  void Finish(const UcxSend& send, ucs_status_t status);
  void FailQueued();
  void AbandonInFlight();
  absl::Status Outcome(ucs_status_t status) const;
  static void OnSent(void* request, ucs_status_t status, void* in_flight);

  const std::shared_ptr<UcxChannelState> state_ = std::make_shared<UcxChannelState>();
  std::unique_ptr<UcxEndpoint> endpoint_;
  const std::string lanes_;
  StatCounters* const counters_;
  Pacer pacer_;
  std::deque<std::unique_ptr<UcxSend>> queue_;  // bounded by max_inflight_sends, see UcxChannel::Send
  uint64_t next_sequence_ = 0;
  std::unordered_set<InFlight*> in_flight_;  // owned by their UCX requests; bounded like queue_
  absl::Time close_began_ = absl::InfiniteFuture();
  bool closed_by_us_ = false;
  bool abandoned_ = false;
};

// Whether all lanes of DescribeLanes() copy payloads on the calling thread, without a device that reads
// memory.
bool LanesOnlyCopy(absl::string_view lanes);

}  // namespace aludel
