#include "server/prefill/connection_cache.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr size_t kMaxWaiting = 1024;
constexpr size_t kMaxWaitingPerHost = 256;

}  // namespace

ConnectionCache::ConnectionCache(Transport* transport, AddressKind kind, int max_connections,
                                 absl::Duration connect_timeout)
    : transport_(transport),
      kind_(kind),
      max_connections_(max_connections),
      connect_timeout_(connect_timeout),
      closer_([this] { KeepClosing(); }) {
  for (int i = 0; i < kConnectThreads; ++i) connectors_.emplace_back([this] { KeepConnecting(); });
}

ConnectionCache::~ConnectionCache() {
  std::list<Entry> entries;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wanted_changed_.SignalAll();
  }
  for (std::thread& connector : connectors_) connector.join();
  {
    absl::MutexLock lock(&mutex_);
    entries.swap(entries_);
  }
  entries.clear();  // posts their closing
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    closing_changed_.Signal();
  }
  closer_.join();
}

std::string ConnectionCache::HostOf(const std::string& address) const {
  const absl::StatusOr<EndpointAddress> parsed = ParseAddress(address, kind_);
  if (!parsed.ok() || parsed->sockets.empty()) return address;
  const SocketEntry& first = parsed->sockets[0];
  return std::string(reinterpret_cast<const char*>(first.ip.data()), first.ip.size());
}

void ConnectionCache::Get(const std::string& address, absl::Time deadline, const Callback& callback) {
  std::shared_ptr<PeerConnection> found;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    found = Find(address);
    if (found == nullptr) refused = Want(address, {deadline, callback});
  }
  if (found != nullptr) return callback(std::move(found));
  if (!refused.ok()) callback(refused);
}

absl::Status ConnectionCache::Want(const std::string& address, Waiter waiter) {
  if (stopping_) return absl::UnavailableError("the server is stopping");
  const std::string host = HostOf(address);
  size_t of_host = 0;
  auto same = wanted_.end();
  for (auto it = wanted_.begin(); it != wanted_.end(); ++it) {
    if (it->host == host) of_host += it->waiters.size();
    if (it->address == address) same = it;
  }
  if (waiting_ >= kMaxWaiting || of_host >= kMaxWaitingPerHost) {
    return absl::ResourceExhaustedError(absl::StrCat(
        waiting_ >= kMaxWaiting ? kMaxWaiting : kMaxWaitingPerHost, " callers wait for connections already"));
  }
  if (same == wanted_.end()) {
    same = wanted_.insert(wanted_.end(), Wanted{.address = address, .host = host});
    wanted_changed_.Signal();
  }
  same->waiters.push_back(std::move(waiter));
  ++waiting_;
  return absl::OkStatus();
}

std::shared_ptr<PeerConnection> ConnectionCache::Find(const std::string& address) {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.address == address; });
  if (entry == entries_.end()) return nullptr;
  if (!entry->connection->healthy()) {
    closing_.push_back([dead = std::move(entry->connection)] { dead->Close(); });
    entries_.erase(entry);
    closing_changed_.Signal();
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return entries_.front().connection;
}

ConnectionCache::WantedList::iterator ConnectionCache::Next() {
  return std::find_if(wanted_.begin(), wanted_.end(),
                      [this](const Wanted& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                        if (one.running()) return false;
                        return std::count_if(wanted_.begin(), wanted_.end(), [&one](const Wanted& other) {
                                 return other.running() && other.host == one.host;
                               }) < kThreadsPerHost;
                      });
}

absl::StatusOr<std::shared_ptr<PeerConnection>> ConnectionCache::Connect(const std::string& address,
                                                                         absl::Time deadline) {
  const absl::Duration left = std::min(connect_timeout_, deadline - MonotonicNow());
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError("the deadline passed before the data plane was connected");
  }
  absl::StatusOr<std::unique_ptr<Channel>> channel = transport_->Connect(address, left);
  if (!channel.ok()) {
    // Why is for this server's operator: told to callers, it would show them which ports are open.
    // At most one line a second, as callers can cause many.
    const absl::Time now = MonotonicNow();
    bool warn = false;
    {
      absl::MutexLock lock(&mutex_);
      warn = now >= next_warning_;
      if (warn) next_warning_ = now + absl::Seconds(1);
    }
    spdlog::log(warn ? spdlog::level::warn : spdlog::level::debug, "cannot connect to a receiver: {}",
                channel.status().ToString());
    return absl::UnavailableError("the receiver's data plane cannot be reached");
  }
  spdlog::info("connected to a receiver over {}", (*channel)->lanes());
  return Wrap(*std::move(channel));
}

void ConnectionCache::KeepConnecting() {
  pthread_setname_np(pthread_self(), "aludel-connect");
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto next = Next();
    if (stopping_) {
      if (next == wanted_.end()) return;  // those that run end by themselves
    } else if (next == wanted_.end()) {
      wanted_changed_.Wait(&mutex_);
      continue;
    }
    next->begun = MonotonicNow();
    absl::Time deadline = absl::InfinitePast();
    for (const Waiter& waiter : next->waiters) deadline = std::max(deadline, waiter.deadline);
    absl::StatusOr<std::shared_ptr<PeerConnection>> made = absl::UnavailableError("the server is stopping");
    if (!stopping_) {
      mutex_.Unlock();
      made = Connect(next->address, deadline);
      mutex_.Lock();
    }
    std::vector<Entry> evicted;  // dies without the lock
    if (made.ok()) {
      entries_.push_front({next->address, *made});
      while (static_cast<int>(entries_.size()) > max_connections_) {
        evicted.push_back(std::move(entries_.back()));
        entries_.pop_back();
      }
    }
    std::vector<Waiter> waiters = std::move(next->waiters);
    next->waiters.clear();
    if (!made.ok() && !stopping_ && deadline < next->begun + connect_timeout_) {
      // Those that came meanwhile, and have more time than the attempt had, get one of their own.
      const auto later =
          std::stable_partition(waiters.begin(), waiters.end(),
                                [deadline](const Waiter& waiter) { return waiter.deadline <= deadline; });
      std::move(later, waiters.end(), std::back_inserter(next->waiters));
      waiters.erase(later, waiters.end());
    }
    waiting_ -= waiters.size();
    if (next->waiters.empty()) {
      wanted_.erase(next);
    } else {
      next->begun = absl::InfiniteFuture();
    }
    wanted_changed_.Signal();  // another address of this host
    mutex_.Unlock();
    for (const Waiter& waiter : waiters) waiter.callback(made);
    waiters.clear();  // a run that ends with its callback may hold the last handle of a connection
    evicted.clear();
    made = absl::UnknownError("");  // its handle may be the last one
    mutex_.Lock();
  }
}

void ConnectionCache::Close(std::shared_ptr<PeerConnection> connection) {
  absl::MutexLock lock(&mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.connection == connection; });
  if (entry != entries_.end()) {
    closing_.push_back([forgotten = std::move(entry->connection)] {});
    entries_.erase(entry);
  }
  closing_.push_back([connection = std::move(connection)] { connection->Close(); });
  closing_changed_.Signal();
}

std::shared_ptr<PeerConnection> ConnectionCache::Wrap(std::unique_ptr<Channel> channel) {
  return std::shared_ptr<PeerConnection>(new PeerConnection(std::move(channel)),
                                         [this](PeerConnection* last) {
                                           absl::MutexLock lock(&mutex_);
                                           closing_.push_back([last] { delete last; });
                                           closing_changed_.Signal();
                                         });
}

absl::Duration ConnectionCache::Silence() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = MonotonicNow();
  absl::Duration silence = std::max(now - closing_since_, absl::ZeroDuration());
  for (const Wanted& one : wanted_) silence = std::max(silence, now - one.begun - connect_timeout_);
  return silence;
}

void ConnectionCache::KeepClosing() {
  pthread_setname_np(pthread_self(), "aludel-close");
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (!closing_.empty()) {
      std::function<void()> next = std::move(closing_.front());
      closing_.pop_front();
      closing_since_ = MonotonicNow();
      mutex_.Unlock();
      next();
      next = nullptr;  // may post
      mutex_.Lock();
      closing_since_ = absl::InfiniteFuture();
    } else if (closed_) {
      return;
    } else {
      closing_changed_.Wait(&mutex_);
    }
  }
}

}  // namespace aludel
