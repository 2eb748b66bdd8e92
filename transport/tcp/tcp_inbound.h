#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/tcp_parser.h"
#include "transport/tcp/tcp_stream.h"

namespace aludel {

// A connection that a peer has made to us: handshake, hello, welcome, then messages. Until the hello it gets
// a little time and room for 32 bytes, and nothing else. Belongs to the progress thread.
class TcpInbound : public Polled {
 public:
  struct Limits {
    absl::Duration hello;    // from the connection to the end of its hello
    absl::Duration receive;  // TransportOptions::receive_timeout
  };
  static absl::StatusOr<std::unique_ptr<TcpInbound>> Accept(int socket, Poller* poller, TcpTls* tls,
                                                            TcpInbox* inbox, const Limits& limits,
                                                            absl::Time now);

  // Reads what there is, within a budget.
  void OnReady() override;
  // There is more to read that the poller will not tell of.
  bool hungry() const { return stream_ != nullptr && hungry_; }
  bool greeted() const { return parser_.greeted(); }
  // When it is to be ended; InfiniteFuture while it owes nothing.
  absl::Time deadline() const { return deadline_; }
  bool ended() const { return stream_ == nullptr; }
  // Closes the connection; a payload under way fails with `reason`.
  void End(const absl::Status& reason);

 private:
  TcpInbound(TcpInbox* inbox, const Limits& limits) : limits_(limits), parser_(inbox), inbox_(inbox) {}
  absl::Status Read();
  absl::Status Welcome();
  // After bytes have come.
  void SetDeadline();

  const Limits limits_;
  std::unique_ptr<TcpStream> stream_;  // null once ended
  TcpParser parser_;
  TcpInbox* const inbox_;
  bool welcomed_ = false;
  bool hungry_ = false;
  MessageId timed_ = 0;  // the message that deadline_ is of; 0: none
  absl::Time timed_from_;
  size_t timed_bytes_ = 0;  // of its payload, to come at that time
  absl::Time deadline_;
};

}  // namespace aludel
