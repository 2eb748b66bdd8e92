#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/link_emulator.h"
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
  absl::Time due = absl::InfinitePast();  // when the emulated link has carried it
  bool lost = false;                      // there
  std::vector<uint8_t> copy;              // holds the payload where the emulated link made another of it
};

class UcxConnection;
struct UcxInFlight;

// What UCX still holds of sends that were completed without it. Their number is bounded by the sends of the
// channels whose peers died behind shared memory.
using UcxAbandonedSends = std::unordered_map<UcxInFlight*, std::unique_ptr<UcxInFlight>>;

// A send that UCX has, known to it by its address.
struct UcxInFlight {
  UcxConnection* connection;  // null once abandoned
  UcxAbandonedSends* abandoned;
  UcxSend send;  // UCX reads its header and payload until the request has completed
};

// The sending side of one channel: paces messages, gives them to UCX in order, and completes each exactly
// once. Belongs to the progress thread. After BeginClose it lives until closed().
//
// UCX 1.13 never finishes closing a shared-memory endpoint whose peer died, or hangs, with a full queue, and
// keeps its requests until then. Closing has taken them off that queue, so their payloads are not read again,
// and nothing but this thread reads them where lanes copy: there, sends are completed without UCX after
// kAbandonAfter. Lanes whose device reads memory by itself are waited for.
class UcxConnection {
 public:
  // `abandoned` outlives the worker.
  UcxConnection(std::unique_ptr<UcxEndpoint> endpoint, const LinkEmulator& link, StatCounters* counters,
                UcxAbandonedSends* abandoned);
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  // May outlive the connection.
  const std::shared_ptr<UcxChannelState>& state() const { return state_; }
  const std::string& lanes() const { return lanes_; }

  void Queue(UcxSend send);

  // Hands on what is due, notices a dead peer; says when it wants to be called next.
  absl::Time Advance(absl::Time now);

  // Cancels everything that is unfinished.
  void BeginClose();
  bool closed() const { return in_flight_.empty() && (endpoint_->closed() || abandoned_); }
  // After closed(): what must be kept until it is closed itself, or the worker is gone.
  std::unique_ptr<UcxEndpoint> TakeEndpoint() { return std::move(endpoint_); }

  static constexpr absl::Duration kAbandonAfter = absl::Milliseconds(250);

 private:
  void CloseEndpoint();
  void Start(UcxSend send);
  void Finish(const UcxSend& send, ucs_status_t status);
  void FailQueued();
  void AbandonInFlight();
  absl::Status Outcome(ucs_status_t status) const;
  static void OnSent(void* request, ucs_status_t status, void* user_data);

  const std::shared_ptr<UcxChannelState> state_ = std::make_shared<UcxChannelState>();
  std::unique_ptr<UcxEndpoint> endpoint_;
  const std::string lanes_;
  StatCounters* const counters_;
  LinkEmulator link_;
  std::deque<UcxSend> queue_;  // bounded by max_inflight_sends, see UcxChannel::Send
  uint64_t next_sequence_ = 0;
  UcxAbandonedSends* const abandoned_sends_;
  std::unordered_map<UcxInFlight*, std::unique_ptr<UcxInFlight>> in_flight_;  // bounded like queue_
  absl::Time close_began_ = absl::InfiniteFuture();
  bool closed_by_us_ = false;
  bool abandoned_ = false;
};

// Whether all lanes of DescribeLanes() copy payloads on a processor, without a device that reads memory.
// (With cma it is the peer's, which may still read after a close; UcxContext says why that is harmless.)
bool LanesOnlyCopy(absl::string_view lanes);

}  // namespace aludel
