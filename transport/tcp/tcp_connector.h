#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/wire.h"

namespace aludel {

// One Connect under way: tries the sockets of an address in turn, each with an even share of the time that is
// left, until one has answered the hello with the welcome of the endpoint that is meant. Belongs to the
// progress thread.
class TcpConnector : public Polled {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<TcpStream>>)>;

  // `done` runs exactly once, within Advance or Abort.
  TcpConnector(Poller* poller, TcpTls* tls, EndpointAddress address, absl::Time deadline, Done done);

  // Does what is due; says when it wants to be called next.
  absl::Time Advance(absl::Time now);
  void Abort(absl::Status status);
  bool finished() const { return finished_; }

  void OnReady() override { ready_ = true; }  // Advance follows

 private:
  void StartAttempt(absl::Time now);
  // False while it waits for the peer; an error ends the attempt.
  absl::StatusOr<bool> Greet();
  void EndAttempt(const absl::Status& why);
  void Finish(absl::StatusOr<std::unique_ptr<TcpStream>> result);

  Poller* const poller_;
  TcpTls* const tls_;
  const EndpointAddress address_;
  const absl::Time deadline_;
  Done done_;
  bool finished_ = false;
  bool ready_ = false;
  size_t next_socket_ = 0;
  absl::Status last_failure_;
  // Of the attempt under way.
  std::unique_ptr<TcpStream> stream_;
  std::string attempt_;  // where to
  absl::Time attempt_deadline_;
  size_t hello_sent_ = 0;
  std::array<uint8_t, sizeof(TcpPrefix)> welcome_;
  size_t welcome_bytes_ = 0;
};

}  // namespace aludel
