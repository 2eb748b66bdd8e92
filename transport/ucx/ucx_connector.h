#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/wire.h"

namespace aludel {

// One Connect call: tries the sockets of an address one after the other, until a pong with the right endpoint
// id proves one of them, or the deadline passes. Each attempt gets an even share of the time that is left, so
// that an address which swallows packets does not use up the time of the next. Belongs to the
// progress thread.
class UcxConnector {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<UcxEndpoint>>)>;

  // `done` is called exactly once, from Advance, OnPong or Abort.
  UcxConnector(const UcxWorker* worker, uint64_t self_id, EndpointAddress address, absl::Time deadline,
               Done done);
  UcxConnector(const UcxConnector&) = delete;
  UcxConnector& operator=(const UcxConnector&) = delete;

  // Starts attempts and ends them; says when it wants to be called next.
  absl::Time Advance(absl::Time now);
  // `sender` has answered the ping with this nonce. True when that was ours.
  bool OnPong(uint64_t nonce, uint64_t sender);
  void Abort(absl::Status status);

  bool finished() const { return finished_; }
  // The endpoint of an attempt that failed; the caller closes and keeps it until it is closed.
  std::unique_ptr<UcxEndpoint> TakeDiscarded() { return std::move(discarded_); }

 private:
  void StartAttempt(absl::Time now);
  void EndAttempt(absl::Status why);

  const UcxWorker* const worker_;
  const uint64_t self_id_;
  const EndpointAddress address_;
  const absl::Time deadline_;
  Done done_;

  size_t next_socket_ = 0;
  std::unique_ptr<UcxEndpoint> endpoint_;  // of the attempt that is under way
  std::string attempt_;                    // its target, for messages
  uint64_t nonce_ = 0;
  absl::Time attempt_deadline_;
  std::unique_ptr<UcxEndpoint> discarded_;
  absl::Status last_failure_;
  bool finished_ = false;
};

}  // namespace aludel
