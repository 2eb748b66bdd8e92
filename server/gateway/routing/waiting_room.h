#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "server/gateway/routing/waiting_queue.h"
#include "server/observe/metrics.h"
#include "server/process/timer.h"

namespace aludel {

// Where requests wait for places at their model's decode servers (WaitingQueue says in which order, and which are
// refused). A server has a place for each sequence that it takes at once; the room gives no more away than the usable
// servers have together. Where they refuse all the same, because memory is short or other gateways use them too, a request
// goes back to its rank, and one of those that wait is tried at a time until a place is given back. What waits when the last
// usable server is lost is kept for a while. Thread-safe.
class WaitingRoom {
 public:
  // What waits. Each Enter or true Return is followed by one of the calls, unless Leave returns true: perhaps inside the
  // call, perhaps on another thread; never under a lock of the room.
  class Guest {
   public:
    virtual ~Guest() = default;
    // It has its places until Ended or Return.
    virtual void Admitted() = 0;
    // RESOURCE_EXHAUSTED, with seconds until a request may be admitted as error_details().
    virtual void Refused(const grpc::Status& status) = 0;
  };
  struct Visit {
    std::string model;
    std::string tenant;
    int weight = 1;  // of the tenant
    int64_t tokens = 0;
    int places = 1;
    int priority = 0;
    absl::Time deadline;
    // The room's:
    uint64_t id = 0;
    absl::Time arrived;
    absl::Time admitted;
  };
  // The places that the model's usable servers have; 0 where that is not known. Nothing: none is usable. In both cases what
  // comes does not begin to wait.
  using Places = std::function<std::optional<int>(const std::string& model)>;

  // `metrics` must outlive the room.
  WaitingRoom(const WaitingQueue::Options& options, const std::vector<std::string>& models, Places places,
              Metrics* metrics);
  ~WaitingRoom();

  // Whether a request that comes now would be refused, whatever its prompt.
  std::optional<grpc::Status> Check(const std::string& model, const std::string& tenant, absl::Time deadline,
                                    int priority);
  // `visit` must stay where it is until the visit has ended.
  void Enter(Visit* visit, std::shared_ptr<Guest> guest);
  // Its servers have no room for an admitted guest. False, and nothing done, where nothing waits by configuration.
  bool Return(Visit* visit, std::shared_ptr<Guest> guest);
  // It waits no longer. False where it does not wait.
  bool Leave(const Visit& visit);
  // An admitted guest gives its places back; `served`: it had its whole answer.
  void Ended(const Visit& visit, bool served);

  int waiting(const std::string& model) const;
  // Of those that wait.
  int waiting_places(const std::string& model) const;

 private:
  struct Waiting {
    std::shared_ptr<Guest> guest;
    Visit* visit = nullptr;
  };
  struct Lane {
    explicit Lane(const WaitingQueue::Options& options) : queue(options) {}
    WaitingQueue queue;
    std::map<uint64_t, Waiting> guests;  // in queue
    bool full = false;                   // servers have refused since a place was given back
    bool trial = false;                  // while full: one may be admitted
    std::optional<absl::Time> lost;      // since when no server is usable
    bool pumping = false;                // a thread is admitting guests
    bool changed = false;                // meanwhile
  };
  // Guests to call once the lock is released.
  struct Calls {
    std::vector<std::shared_ptr<Guest>> admitted;
    std::vector<std::pair<std::shared_ptr<Guest>, grpc::Status>> refused;
  };

  Lane& LaneOf(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom(const std::string& model, const Lane& lane, int places) const;
  // Whether the next entry may be admitted now.
  bool MayAdmit(const std::string& model, Lane* lane, const WaitingQueue::Entry& next, absl::Time now) const;
  void Push(Lane* lane, Visit* visit, std::shared_ptr<Guest> guest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::Status Refuse(const std::string& model, const WaitingQueue::Refusal& refusal);
  Calls Collect(const std::string& model, Lane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Admits and refuses what it can.
  void Pump(const std::string& model);
  void Tick();

  const WaitingQueue::Options options_;
  const Places places_;
  const HistogramFamily wait_seconds_;
  const CounterFamily refusals_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Lane> lanes_ ABSL_GUARDED_BY(mutex_);  // of models that were configured, or asked for
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Timer::Id tick_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: nothing waits
  Timer timer_;                                 // last: its thread uses the above
};

}  // namespace aludel
