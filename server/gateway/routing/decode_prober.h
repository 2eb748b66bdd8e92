#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "server/gateway/routing/decode_target.h"

namespace aludel {

// Asks each decode server with Describe how it is, from one thread: once per interval, and one that does not answer
// again after 50 ms, then with an interval that doubles up to eight of them. A server that is usable is also asked for
// its load, more often; one that does not know that call, seldom. What follows from answers is the target's. Thread-safe.
class DecodeProber {
 public:
  struct Timing {
    absl::Duration interval = absl::Seconds(1);
    absl::Duration timeout = absl::Seconds(1);
    absl::Duration load_interval = absl::Milliseconds(200);
  };
  // Is called on the prober's thread after answers and once in a while; it may call SetTargets.
  using Look = std::function<void(DecodeProber* prober)>;
  DecodeProber(const std::vector<std::shared_ptr<DecodeTarget>>& targets, const Timing& timing, Look look);
  ~DecodeProber();  // waits for probes in flight

  // These are asked from now on, and no others; what is known of those that were asked before stays.
  void SetTargets(const std::vector<std::shared_ptr<DecodeTarget>>& targets);
  // A call could not reach the server: whether it is gone is asked at once.
  void ProbeSoon(const DecodeTarget* target);

 private:
  struct Probed;

  void Loop();
  void Probe(const std::shared_ptr<Probed>& probed);
  void AskLoad(const std::shared_ptr<Probed>& probed);

  const Timing timing_;
  const Look look_;
  std::mutex mutex_;                 // not absl's, whose timed waits follow the clock that can be set
  std::condition_variable changed_;  // of what mutex_ guards:
  std::vector<std::shared_ptr<Probed>> probed_;
  bool stopping_ = false;
  int running_ = 0;        // probes, and requests for load reports
  bool answered_ = false;  // a probe, or one is due, since the thread last looked
  std::thread thread_;
};

}  // namespace aludel
