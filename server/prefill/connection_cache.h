#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/prefill/peer_connection.h"
#include "transport/transport.h"
#include "transport/wire.h"

namespace aludel {

// Connections to decode servers by data-plane address, the least recently used dropped beyond a bound.
// Blocking work runs on threads of its own, never on gRPC's or the transport's: closing on one, connecting on
// kConnectThreads. All who wait for an address wait for one attempt, and of the addresses of one host at most
// kThreadsPerHost are tried at a time, so that peers that do not answer delay no others.
// Thread-safe. Connections must have been returned before this dies, and this before the transport.
class ConnectionCache {
 public:
  using Callback = std::function<void(absl::StatusOr<std::shared_ptr<PeerConnection>>)>;
  static constexpr int kConnectThreads = 8;
  static constexpr int kThreadsPerHost = 2;

  // `kind`: of the transport's addresses, whose first socket names the host.
  ConnectionCache(Transport* transport, AddressKind kind, int max_connections,
                  absl::Duration connect_timeout);
  // Fails waiting callers with Unavailable.
  ~ConnectionCache();

  // A healthy connection to `address`, old or new, until `deadline` of MonotonicNow(). `callback` runs
  // exactly once, inside the call where the connection exists already. ResourceExhausted when too many wait
  // to connect, to this host or in all.
  void Get(const std::string& address, absl::Time deadline, const Callback& callback);
  // Forgets the connection and closes it soon: every unfinished send on it ends.
  void Close(std::shared_ptr<PeerConnection> connection);

  // For how long one of the threads has been at what it is doing, beyond what connecting may take.
  absl::Duration Silence() const;

 private:
  struct Entry {
    std::string address;
    std::shared_ptr<PeerConnection> connection;
  };
  struct Waiter {
    absl::Time deadline;
    Callback callback;
  };
  // A connection that is wanted and not there yet.
  struct Wanted {
    std::string address;
    std::string host;
    std::vector<Waiter> waiters;
    absl::Time begun = absl::InfiniteFuture();  // of the attempt
    bool running() const { return begun != absl::InfiniteFuture(); }
  };
  using WantedList = std::list<Wanted>;  // first come first

  std::string HostOf(const std::string& address) const;
  // A handle whose last owner hands the connection to the closing thread: closing blocks, and the last owner
  // may be the transport's own thread.
  std::shared_ptr<PeerConnection> Wrap(std::unique_ptr<Channel> channel);
  std::shared_ptr<PeerConnection> Find(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The status of what could not be queued.
  absl::Status Want(const std::string& address, Waiter waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WantedList::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<PeerConnection>> Connect(const std::string& address, absl::Time deadline);
  void KeepConnecting();
  void KeepClosing();

  Transport* const transport_;
  const AddressKind kind_;
  const int max_connections_;
  const absl::Duration connect_timeout_;
  mutable absl::Mutex mutex_;
  absl::CondVar wanted_changed_;
  absl::CondVar closing_changed_;
  absl::Time next_warning_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  WantedList wanted_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks of wanted_
  std::deque<std::function<void()>> closing_ ABSL_GUARDED_BY(mutex_);
  absl::Time closing_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // nothing will be closed any more
  std::vector<std::thread> connectors_;
  std::thread closer_;
};

}  // namespace aludel
