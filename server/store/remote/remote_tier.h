#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/store/segment_scan.h"
#include "server/store/chunk_key.h"
#include "server/store/remote/redis_connection.h"
#include "server/store/remote/remote_names.h"
#include "server/store/store_control.h"

namespace aludel {

// Chunks that the prefill servers of one producer share, in a Valkey or Redis server: each the record of the disk's
// format (FORMAT.md), found by its key, which contains the tenant's salt. What is there for how long is the remote's:
// its memory limit and eviction, and `ttl` since a server last wrote or used a chunk.
//
// A remote that fails, or is silent for `silence`, is down: then usable() is false, calls fail at once, and
// a thread of its own connects again, after 100 ms at first and then with an interval that doubles up to 5 s, until one
// has lasted for `steady`. So a hang is paid for once and not by each request. One that answers but takes too long for
// its caller, or moves less than 256 KiB a second, stays up: that costs a connection. Calls block, for threads that may; thread-safe.
class RemoteTier {
 public:
  struct Options {
    std::string address;  // host:port
    std::string username;
    std::string password;  // "": none is asked for
    absl::Duration ttl = absl::Hours(24);
    absl::Duration silence = absl::Milliseconds(5);
    absl::Duration steady = absl::Seconds(10);
    StoreKey producer = {};
    AddressResolver resolve = ResolveAddress;  // may take as long as it likes, and outlive the tier
  };
  // The chunks that follow one another, each with its number of tokens.
  struct Run {
    struct Chunk {
      ChunkKey key = {};
      uint32_t tokens = 0;
    };
    int64_t era = 0;
    std::vector<Chunk> chunks;
    bool in_part = false;  // there was no time to look for more
  };
  // No larger record is written.
  static constexpr size_t kMaxRecordBytes = 128 << 20;

  explicit RemoteTier(Options options);
  // After Stop.
  ~RemoteTier();
  RemoteTier(const RemoteTier&) = delete;
  RemoteTier& operator=(const RemoteTier&) = delete;

  bool usable() const ABSL_LOCKS_EXCLUDED(mutex_);
  // When it was found again: what was written before may be gone.
  absl::Time up_since() const ABSL_LOCKS_EXCLUDED(mutex_);
  const Options& options() const { return options_; }

  // Calls fail from now on, and those under way soon.
  void Stop() { stop_ = true; }

  // The longest run behind `before` that `rest` begins with, or what of it can be known by `until`, by the time that
  // one round trip takes.
  absl::StatusOr<Run> Find(const ChunkKey& before, const StoreTag& salt, const StoreTag& encoder,
                           absl::Span<const int32_t> rest, absl::Time until);
  // NotFound where it is there no more; DataLoss where it is not a record of this key. `on_begun` is called when the answer
  // begins to come, before this returns.
  absl::StatusOr<LoadedChunk> Load(int64_t era, const ChunkKey& key,
                                   std::function<void()> on_begun = nullptr);
  // As Load, in the present era.
  absl::StatusOr<LoadedChunk> Load(const StoreTag& salt, const StoreTag& encoder, const ChunkKey& key);
  // Has a chunk that is there live for another `ttl`.
  absl::Status Renew(const ChunkEntry& entry);
  // What Load refused is there no more, for any server.
  absl::Status Drop(int64_t era, const ChunkKey& key);
  // Writes it, or has it live for another `ttl` where it is there and not to be replaced; returns the bytes written.
  // ResourceExhausted: the remote has no room, or refuses.
  absl::StatusOr<size_t> Write(ChunkMeta meta, absl::Span<const absl::Span<const uint8_t>> payloads,
                               bool replace = false);

  // What matches is found no more by any server, however much of it there is: a new era begins for it. From this call
  // on usable() is false until the remote has taken note, which Flush does, or a later connection.
  void BeginEra(const StoreFilter& filter);
  // As BeginEra, of these chunks: they are there no more, and nothing is found behind them by those that do not write
  // them again.
  void BeginForget(const StoreTag& salt, const StoreTag& encoder, std::vector<ChunkKey> keys);
  absl::Status Flush();

 private:
  using Connection = std::unique_ptr<RedisConnection>;

  absl::StatusOr<LoadedChunk> LoadWith(RedisConnection& connection, int64_t era, const ChunkKey& key,
                                       const RedisConnection::Limits& limits) const;
  // A connection that is free, or a new one.
  absl::StatusOr<Connection> Take(const RedisConnection::Limits& limits) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(Connection connection) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `work` with a connection; an error of it but those that speak of one chunk takes the remote down.
  template <typename T, typename Work>
  absl::StatusOr<T> With(const RedisConnection::Limits& limits, const Work& work);
  // Has the chunk, and the sets through which it is found, live for another `ttl`.
  absl::Status Renew(RedisConnection& connection, int64_t era, const ChunkEntry& entry,
                     const RedisConnection::Limits& limits) const;
  absl::StatusOr<int64_t> Era(RedisConnection& connection, const StoreTag& salt, const StoreTag& encoder,
                              const RedisConnection::Limits& limits) const;
  // The longest chunk behind `before` that `rest` begins with; of 0 tokens: none.
  absl::StatusOr<Run::Chunk> Longest(RedisConnection& connection, int64_t era, const ChunkKey& before,
                                     absl::Span<const int32_t> rest,
                                     const RedisConnection::Limits& limits) const;
  // As many chunks of the last one's length as there are, behind it: prompts are mostly cut into equal ones.
  absl::Status AddEqual(RedisConnection& connection, absl::Span<const int32_t> rest, Run* run,
                        const RedisConnection::Limits& limits) const;
  absl::Status FlushTo(RedisConnection& connection, const RedisConnection::Limits& limits)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts the field up; where the remote has no room for that, it goes without some chunks.
  absl::Status CountUp(RedisConnection& connection, const std::string& field,
                       const RedisConnection::Limits& limits) const;
  // A part of what is to be forgotten. False: that was all.
  absl::StatusOr<bool> ForgetSome(RedisConnection& connection, const RedisConnection::Limits& limits)
      ABSL_LOCKS_EXCLUDED(mutex_);
  RedisConnection::Limits Until(absl::Duration silence, absl::Duration limit) const;
  void GoDown(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch();
  absl::Status ComeUp();

  const Options options_;
  const RemoteNames names_;
  mutable absl::Mutex mutex_;
  bool up_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stop_{false};
  absl::Time up_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  RedisAddress address_ ABSL_GUARDED_BY(mutex_);
  std::vector<Connection> free_ ABSL_GUARDED_BY(mutex_);  // as many as ever were used at once, at most
  std::multiset<std::string> uncleared_ ABSL_GUARDED_BY(mutex_);  // fields that are to be counted up
  struct Unforgotten {
    StoreTag salt = {};
    StoreTag encoder = {};
    std::vector<ChunkKey> keys;
  };
  std::list<Unforgotten> unforgotten_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex forget_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one forgets at a time
  std::thread watch_;                                      // last: it uses the rest
};

}  // namespace aludel
