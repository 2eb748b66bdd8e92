#include "server/prefill/connection_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr int kMaxWaiting = 256;

}  // namespace

ConnectionCache::ConnectionCache(Transport* transport, int max_connections, absl::Duration connect_timeout)
    : transport_(transport),
      max_connections_(max_connections),
      connect_timeout_(connect_timeout),
      worker_([this] { Work(); }) {}

ConnectionCache::~ConnectionCache() {
  std::list<Entry> entries;
  {
    absl::MutexLock lock(&mutex_);
    entries.swap(entries_);
  }
  entries.clear();  // posts their closing
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  worker_.join();
}

void ConnectionCache::Get(const std::string& address, absl::Time deadline, const Callback& callback) {
  std::shared_ptr<PeerConnection> found;
  bool full = false;
  {
    absl::MutexLock lock(&mutex_);
    found = Find(address);
    full = found == nullptr && waiting_ >= kMaxWaiting;
    if (found == nullptr && !full) {
      ++waiting_;
      work_.push_back([this, address, deadline, callback] { Connect(address, deadline, callback); });
      changed_.Signal();
    }
  }
  if (found != nullptr) callback(std::move(found));
  if (full)
    callback(absl::ResourceExhaustedError(absl::StrCat(kMaxWaiting, " connections are being made already")));
}

std::shared_ptr<PeerConnection> ConnectionCache::Find(const std::string& address) {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.address == address; });
  if (entry == entries_.end()) return nullptr;
  if (!entry->connection->healthy()) {
    work_.push_back([dead = std::move(entry->connection)] { dead->Close(); });
    entries_.erase(entry);
    changed_.Signal();
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return entries_.front().connection;
}

void ConnectionCache::Connect(const std::string& address, absl::Time deadline, const Callback& callback) {
  std::shared_ptr<PeerConnection> connection;
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    --waiting_;
    stopping = stopping_;
    connection = Find(address);  // another request may have made it meanwhile
  }
  if (connection != nullptr) return callback(std::move(connection));
  if (stopping) return callback(absl::UnavailableError("the server is stopping"));
  const absl::Duration left = std::min(connect_timeout_, deadline - MonotonicNow());
  if (left <= absl::ZeroDuration()) {
    return callback(absl::DeadlineExceededError("the deadline passed before the data plane was connected"));
  }
  absl::StatusOr<std::unique_ptr<Channel>> channel = transport_->Connect(address, left);
  if (!channel.ok()) {
    // Why is for this server's operator: told to callers, it would show them which ports are open.
    // At most one line a second, as callers can cause many.
    const absl::Time now = MonotonicNow();
    const bool warn = now >= next_warning_;
    if (warn) next_warning_ = now + absl::Seconds(1);
    spdlog::log(warn ? spdlog::level::warn : spdlog::level::debug, "cannot connect to a receiver: {}",
                channel.status().ToString());
    return callback(absl::UnavailableError("the receiver's data plane cannot be reached"));
  }
  spdlog::info("connected to a receiver over {}", (*channel)->lanes());
  connection = Wrap(*std::move(channel));
  std::vector<Entry> evicted;  // dies after the lock
  {
    absl::MutexLock lock(&mutex_);
    entries_.push_front({address, connection});
    while (static_cast<int>(entries_.size()) > max_connections_) {
      evicted.push_back(std::move(entries_.back()));
      entries_.pop_back();
    }
  }
  callback(std::move(connection));
}

void ConnectionCache::Close(std::shared_ptr<PeerConnection> connection) {
  absl::MutexLock lock(&mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.connection == connection; });
  if (entry != entries_.end()) {
    work_.push_back([forgotten = std::move(entry->connection)] {});
    entries_.erase(entry);
  }
  work_.push_back([connection = std::move(connection)] { connection->Close(); });
  changed_.Signal();
}

std::shared_ptr<PeerConnection> ConnectionCache::Wrap(std::unique_ptr<Channel> channel) {
  return std::shared_ptr<PeerConnection>(new PeerConnection(std::move(channel)),
                                         [this](PeerConnection* last) {
                                           absl::MutexLock lock(&mutex_);
                                           work_.push_back([last] { delete last; });
                                           changed_.Signal();
                                         });
}

void ConnectionCache::Work() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (!work_.empty()) {
      std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      mutex_.Unlock();
      next();
      next = nullptr;  // may post
      mutex_.Lock();
    } else if (stopping_) {
      return;
    } else {
      changed_.Wait(&mutex_);
    }
  }
}

}  // namespace aludel
