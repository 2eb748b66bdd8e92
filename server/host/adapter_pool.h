#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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
#include "kernels/device.h"
#include "runtime/model/adapters/lora_weights.h"
#include "server/host/adapter_codecs.h"
#include "server/host/served_adapter.h"

namespace aludel {

// What a server says of its adapters.
struct AdapterStats {
  int64_t known = 0;
  int64_t resident = 0;        // on the device, those that were removed and still run included
  int64_t resident_bytes = 0;  // decoders not counted
  int64_t waiting = 0;         // requests
  uint64_t loads = 0;
  uint64_t evictions = 0;
};

// The adapters of one base by name. At most `max_resident` of those that are known lie on the device; the
// others are loaded when a request names them, by a thread of the pool's own, in place of the one that was used
// least recently. One that a request holds is never evicted: where all are held, requests for others wait, first
// come, first served, and requests for those on the device wait behind one that has waited for kPatience.
// Thread-safe.
class AdapterPool {
 public:
  using Handle = std::shared_ptr<const ServedAdapter>;  // the adapter stays while one lives
  // Called once, on the caller's thread or on the pool's, without a lock held.
  using Ready = std::function<void(absl::StatusOr<Handle>)>;

  static constexpr absl::Duration kPatience = absl::Seconds(1);
  static constexpr size_t kMaxWaiting = 1024;
  static constexpr size_t kMaxKnown = 4096;
  static constexpr size_t kMaxNameBytes = 256;

  // `device` must outlive it. An adapter comes with the decoders that `codecs` has for it.
  AdapterPool(Device* device, LoraWeights::Base base, int max_resident, AdapterCodecs codecs = {});
  // Waiters end with Unavailable. No handle may be left.
  ~AdapterPool();
  AdapterPool(const AdapterPool&) = delete;
  AdapterPool& operator=(const AdapterPool&) = delete;

  // Makes an adapter known once its headers fit the base; loads nothing. AlreadyExists where it is there already,
  // FailedPrecondition where another of this name is, of another directory or `cache`; InvalidArgument and NotFound as
  // ServedAdapter::Check.
  absl::Status Add(const std::string& name, const std::string& directory, CacheOf cache = CacheOf::kAdapter);
  // Forgets it, so that no request can name it from now on. Those that run or wait end with it.
  // NotFound where it is not known.
  absl::Status Remove(const std::string& name);

  // Gives `ready` the adapter: at once, where it is on the device and none waits too long. Else once it is there, or
  // with an error: NotFound, DeadlineExceeded at `deadline`, ResourceExhausted with kMaxWaiting before it, or what
  // loading it found.
  // Returns what GiveUp takes; 0: answered.
  uint64_t Acquire(const std::string& name, absl::Time deadline, Ready ready);
  // Ends a wait with `reason`, unless it has ended.
  void GiveUp(uint64_t wait, const absl::Status& reason);

  struct About {
    std::string name;
    std::string hash;  // ServedAdapter::hash, of the files as they were when they were last read
    CacheOf cache = CacheOf::kAdapter;
    bool activated = false;  // ServedAdapter::activated
  };
  struct Known {
    std::vector<About> adapters;  // in order of their names
    uint64_t changes = 0;         // of them, since the pool was made
  };
  Known known() const;
  AdapterStats stats() const;
  // Those that some adapters may have.
  std::vector<AdapterCodecs::Format> formats() const;
  // Adapters have the decoders of these from now on: those on the device at the end of the call. Returns the formats
  // that are others than before (AdapterCodecs::ChangedIn). Not for an engine's thread.
  std::set<std::string> SetCodecs(AdapterCodecs codecs);
  // Frees decoders from before that no request uses any more.
  void Tend();

 private:
  struct Entry {
    std::string name;
    std::string directory;
    CacheOf cache = CacheOf::kAdapter;
    ServedAdapter::Identity identity;
    std::unique_ptr<ServedAdapter> served;  // null: not on the device
    int users = 0;
    uint64_t last_used = 0;
    bool removed = false;
    bool announced = false;  // the pool's thread's: its formats were logged
  };
  using EntryRef = std::shared_ptr<Entry>;
  struct Waiter {
    uint64_t id;
    EntryRef entry;
    absl::Time since;
    absl::Time deadline;
    Ready ready;
  };
  // What the pool's thread does next, once it has let go of the lock.
  struct Work {
    std::vector<std::pair<Ready, absl::StatusOr<Handle>>> answers;
    std::vector<std::unique_ptr<ServedAdapter>> dropped;
    EntryRef load;
  };

  void Loop();
  Work NextWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the waiters of adapters that are there theirs, and those past their deadline an error.
  void Answer(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Room for one more on the device: true with what was evicted for it in `work`.
  bool MakeRoom(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Load(const EntryRef& entry);
  // Which formats it has, once.
  void Announce(Entry& entry, const ServedAdapter& served, const AdapterCodecs& codecs) const;
  Handle Take(const EntryRef& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(const EntryRef& entry);

  Device* const device_;
  const LoraWeights::Base base_;
  const int max_resident_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<const AdapterCodecs> codecs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const AdapterCodecs::Opened>> retired_ ABSL_GUARDED_BY(mutex_);
  absl::CondVar changed_;
  std::map<std::string, EntryRef> known_ ABSL_GUARDED_BY(mutex_);
  std::vector<EntryRef> resident_ ABSL_GUARDED_BY(mutex_);
  std::deque<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_wait_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t loads_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t evictions_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has something to look at
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace aludel
