#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/link_emulator.h"
#include "transport/stat_counters.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/tcp/tcp_wire.h"

namespace aludel {

// What a channel's callers and the progress thread both look at.
struct TcpChannelState {
  std::atomic<bool> healthy{true};
  std::atomic<int> unfinished{0};    // sends, from Send until just before their `done`
  std::atomic<uint64_t> written{0};  // bytes that the kernel has taken
};

// One message on its way out.
struct TcpSend {
  TcpHead head;
  absl::Span<const uint8_t> payload;
  std::function<void(absl::Status)> done;
  absl::Time due = absl::InfinitePast();  // when the emulated link has carried it
  bool lost = false;                      // there
  std::vector<uint8_t> copy;              // holds the payload where the emulated link made another of it
};

// The sending side of one channel: paces messages, writes them in order, and completes each exactly once.
// What the peer sends is an error. Belongs to the progress thread.
class TcpSender : public Polled {
 public:
  TcpSender(std::unique_ptr<TcpStream> stream, const LinkEmulator& link, StatCounters* counters);

  // May outlive the sender.
  const std::shared_ptr<TcpChannelState>& state() const { return state_; }
  const std::string& lanes() const { return lanes_; }

  void Queue(TcpSend send);
  // Writes what is due; says when more will be.
  absl::Time Advance(absl::Time now);
  void OnReady() override;

  // Ends everything that is unfinished with Cancelled, and the connection.
  void Close();

 private:
  void Flush();
  // Takes `bytes` off the front of writing_.
  void Written(size_t bytes);
  void Finish(const TcpSend& send, const absl::Status& outcome);
  // The peer is gone, or does what no peer of ours does.
  void Fail(const absl::Status& why);
  void FinishAll(const absl::Status& outcome);

  const std::shared_ptr<TcpChannelState> state_ = std::make_shared<TcpChannelState>();
  std::unique_ptr<TcpStream> stream_;  // null once it has failed
  const std::string lanes_;
  StatCounters* const counters_;
  LinkEmulator link_;
  // Both bounded by max_inflight_sends, see TcpChannel::Send.
  std::deque<TcpSend> queue_;    // not yet due
  std::deque<TcpSend> writing_;  // in order; written_ bytes of the first have left
  size_t written_ = 0;
  uint64_t next_number_ = 0;
  absl::Status failure_;
};

}  // namespace aludel
