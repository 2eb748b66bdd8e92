#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/prefill/peer_connection.h"
#include "transport/transport.h"

namespace aludel {

// Connections to decode servers by data-plane address, the least recently used dropped beyond a bound.
// Blocking work (connecting, closing) runs on one thread of its own, never on gRPC's or the transport's.
// Thread-safe. Connections must have been returned before this dies, and this before the transport.
class ConnectionCache {
 public:
  using Callback = std::function<void(absl::StatusOr<std::shared_ptr<PeerConnection>>)>;

  ConnectionCache(Transport* transport, int max_connections, absl::Duration connect_timeout);
  // Fails waiting callers with Unavailable.
  ~ConnectionCache();

  // A healthy connection to `address`, old or new, until `deadline` of MonotonicNow(). `callback` runs
  // exactly once, inside the call where the connection exists already. ResourceExhausted when too many wait
  // to connect.
  void Get(const std::string& address, absl::Time deadline, const Callback& callback);
  // Forgets the connection and closes it soon: every unfinished send on it ends.
  void Close(std::shared_ptr<PeerConnection> connection);

 private:
  struct Entry {
    std::string address;
    std::shared_ptr<PeerConnection> connection;
  };

  // A handle whose last owner hands the connection to the worker: closing blocks, and the last owner may be
  // the transport's own thread.
  std::shared_ptr<PeerConnection> Wrap(std::unique_ptr<Channel> channel);
  std::shared_ptr<PeerConnection> Find(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Connect(const std::string& address, absl::Time deadline, const Callback& callback);
  void Work();

  Transport* const transport_;
  const int max_connections_;
  const absl::Duration connect_timeout_;
  absl::Time next_warning_ = absl::InfinitePast();  // the worker's
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace aludel
