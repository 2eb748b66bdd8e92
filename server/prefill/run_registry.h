#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "runtime/codec/frame.h"

namespace aludel {

class PrefillRun;

// The runs of a prefill server by ticket, so that later calls find theirs: a ticket is good for one run at a
// time. Holds weak references. Thread-safe.
class RunRegistry {
 public:
  static constexpr size_t kMaxRuns = 4096;  // open at once, those that wait for memory included

  // AlreadyExists for a ticket that has a run, ResourceExhausted for one run too many.
  absl::Status Add(const TicketId& ticket, const std::shared_ptr<PrefillRun>& run);
  // Forgets the ticket if it is `run` that has it.
  void Remove(const TicketId& ticket, const PrefillRun* run);
  // Null where there is none, or no longer.
  std::shared_ptr<PrefillRun> Find(const TicketId& ticket) const;

 private:
  struct Entry {
    const PrefillRun* run;
    std::weak_ptr<PrefillRun> alive;
  };
  mutable absl::Mutex mutex_;
  std::map<TicketId, Entry> runs_ ABSL_GUARDED_BY(mutex_);  // bounded by the open runs
};

}  // namespace aludel
