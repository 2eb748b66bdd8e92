#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "aludel/v1/load.pb.h"
#include "server/decode/load/prefix_log.h"
#include "server/decode/plan/cost_model.h"
#include "server/decode/plan/prefill_pool.h"
#include "server/host/model_host.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// What gateways hear of this server's load. Thread-safe; a report takes some microseconds.
class LoadReporter {
 public:
  // All of it must outlive the reporter.
  struct Source {
    uint64_t epoch = 0;
    const DecodeHost* model = nullptr;
    const CostModel* costs = nullptr;
    const PrefillPool* prefill_pool = nullptr;
    bool may_hand_over = true;  // requests are, unless they ask for something else
  };
  explicit LoadReporter(const Source& source) : source_(source), began_(MonotonicNow()) {}

  // Seconds until a prompt that comes now is computed.
  double WaitingSeconds() const;
  // Without prefixes.
  v1::LoadReport Report() const;
  // The same, as bytes of metadata.
  std::string Hint() const { return Report().SerializeAsString(); }

  // What was sent here, and is believed to be cached.
  PrefixLog& prefixes() { return prefixes_; }
  const PrefixLog& prefixes() const { return prefixes_; }
  void CacheWasReset();

 private:
  const Source source_;
  const absl::Time began_;
  PrefixLog prefixes_;
  std::atomic<uint64_t> resets_{0};
};

}  // namespace aludel
