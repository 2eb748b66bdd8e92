#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aludel/v1/load.grpc.pb.h"
#include "server/rpc/cache_events/cache_mirror.h"

namespace aludel {

// A server that can be asked what its cache holds, and what becomes of what it says. Thread-safe; what it says comes from one
// thread at a time.
class CacheSource {
 public:
  virtual ~CacheSource() = default;

  virtual const std::string& cache_name() const = 0;  // for messages
  virtual v1::CacheEvents::Stub* cache_stub() const = 0;
  // Whether it is asked now, where it is not being asked already.
  virtual bool cache_wanted() const = 0;
  // Whether the process is the one that is meant; else it is asked again in a moment.
  virtual bool cache_is_of(uint64_t /*epoch*/) const { return true; }
  // mirror.changes() are all that it has; or they have changed since. Keys that are known of it now; nothing: that is too much
  // to know.
  virtual std::optional<size_t> CacheKnown(const CacheMirror& mirror) = 0;
  virtual std::optional<size_t> CacheChanged(const CacheMirror& mirror) = 0;
  // Nothing is known of it any more.
  virtual void CacheUnknown() = 0;
};

// Has servers tell what their caches hold: one stream each. What a stream said is forgotten when it ends; it is opened again
// after a while, longer each time that it ends before kLongLife. A server that does not know the call is asked
// seldom. Where servers tell more than can be known of all, the one that tells most is known no more, so that it takes
// nothing from others; it is asked seldom, and while there is no room for what it told, not at all. Used by one thread.
class CacheFeeds {
 public:
  static constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
  static constexpr absl::Duration kMostRetry = absl::Seconds(5);
  static constexpr absl::Duration kUnknownRetry = absl::Seconds(30);
  static constexpr absl::Duration kLongLife = absl::Seconds(5);
  // A snapshot is work: a stream that has one sooner than this after another ends.
  static constexpr absl::Duration kLeastBetweenSnapshots = absl::Seconds(2);

  struct Limits {
    size_t server_keys;  // of one server
    size_t
        all_keys;  // of all, snapshots that are not whole yet included; exceeded by what comes between two Tend
  };
  explicit CacheFeeds(const Limits& limits) : limits_(limits) {}
  ~CacheFeeds();  // ends all streams, and waits for that

  // These are the servers now. To be called a few times a second.
  void Tend(const std::vector<std::shared_ptr<CacheSource>>& sources);

 private:
  class Feed;
  struct Fed {
    std::shared_ptr<CacheSource> source;
    std::shared_ptr<Feed> feed;  // null: none is open
    absl::Time next = absl::InfinitePast();
    absl::Duration retry = kFirstRetry;
    size_t keys = 0;  // that it told when it was one too many; 0: it was not
  };
  void Tend(Fed* fed);
  // Of all streams that may go on.
  size_t Keys() const;
  void Bound();
  void Ended();

  const Limits limits_;
  std::map<const CacheSource*, Fed> fed_;
  absl::Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
