#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/gateway/routing/decode_target.h"
#include "server/gateway/routing/running_calls.h"

namespace aludel {

// Has each decode server tell what its prefix cache holds, as long as it is usable: one stream each. What a stream said is
// forgotten when it ends; it is opened again after a while, longer each time that it ends before a whole snapshot. A server
// that does not know the call is asked seldom. Used by one thread.
class CacheFeeds {
 public:
  static constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
  static constexpr absl::Duration kMostRetry = absl::Seconds(5);
  static constexpr absl::Duration kUnknownRetry = absl::Seconds(30);

  CacheFeeds() = default;
  ~CacheFeeds();  // ends all streams, and waits for that

  // These are the servers now. To be called a few times a second.
  void Tend(const std::vector<std::shared_ptr<DecodeTarget>>& targets);

 private:
  class Feed;
  struct Fed {
    std::shared_ptr<DecodeTarget> target;
    std::shared_ptr<Feed> feed;  // null: none is open
    absl::Time next = absl::InfinitePast();
    absl::Duration retry = kFirstRetry;
  };
  void Tend(Fed* fed);

  RunningCalls calls_;
  std::map<const DecodeTarget*, Fed> fed_;
};

}  // namespace aludel
