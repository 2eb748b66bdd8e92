#pragma once

#include <cstddef>
#include <map>
#include <memory>
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
  // mirror.changes() are all that it has; or they have changed since. False: that is too much to know.
  virtual bool CacheKnown(const CacheMirror& mirror) = 0;
  virtual bool CacheChanged(const CacheMirror& mirror) = 0;
  // Nothing is known of it any more.
  virtual void CacheUnknown() = 0;
};

// Has servers tell what their caches hold: one stream each. What a stream said is forgotten when it ends; it is opened again
// after a while, longer each time that it ends before a whole snapshot. A server that does not know the call is asked
// seldom. Used by one thread.
class CacheFeeds {
 public:
  static constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
  static constexpr absl::Duration kMostRetry = absl::Seconds(5);
  static constexpr absl::Duration kUnknownRetry = absl::Seconds(30);

  // `max_keys`: of one server's snapshot.
  explicit CacheFeeds(size_t max_keys) : max_keys_(max_keys) {}
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
  };
  void Tend(Fed* fed);
  void Ended();

  const size_t max_keys_;
  std::map<const CacheSource*, Fed> fed_;
  absl::Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
