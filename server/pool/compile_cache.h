#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/text/constrain/text_constraint.h"
#include "server/pool/work_pool.h"

namespace aludel {

// Compiles each constraint once, on threads of its own: requests that ask for the same one at the same time
// wait for one compilation, and later ones find it. What is wrong with a schema is remembered like a value. A
// compilation that nothing waits for any more is stopped. Holds at most max_entries of at most max_bytes of
// text together. Thread-safe.
template <typename Value>
class CompileCache {
 public:
  struct Options {
    size_t max_entries = 16;
    size_t max_bytes = 4 << 20;
    int threads = 1;
    size_t max_queue = 256;
  };
  using Result = absl::StatusOr<Value>;
  using Compiler = std::function<Result(const TextConstraint&)>;
  using Done = std::function<void(Result)>;

  // One request's interest.
  class Wait {
   public:
    // `done` gets the reason, unless it has been called before.
    void Stop(absl::Status reason) { cache_->StopWait(this, std::move(reason)); }

   private:
    friend class CompileCache;
    CompileCache* cache_ = nullptr;
    std::string key_;
    std::weak_ptr<Wait> self_;
    Timer::Id timer_id_ = 0;
    Done done_;  // null once it was called; guarded by the cache's mutex
  };

  // `compiler` runs within a StopScope. InvalidArgument and FailedPrecondition are the schema's own fault.
  CompileCache(Options options, Compiler compiler)
      : options_(options),
        compiler_(std::move(compiler)),
        pool_({.name = "schemas", .threads = options.threads, .max_queue = options.max_queue}) {}
  ~CompileCache() { Shutdown(); }

  // `done` is called once: by Begin where the result is known, else by a thread of the cache; or with
  // DeadlineExceeded, Stop's reason, or Unavailable where too many wait. Two steps, so that what stops a wait
  // can be in place before it begins. Waits must not outlive the cache.
  std::shared_ptr<Wait> Make(Done done) {
    auto wait = std::make_shared<Wait>();
    wait->cache_ = this;
    wait->self_ = wait;
    wait->done_ = std::move(done);
    return wait;
  }

  void Begin(const std::shared_ptr<Wait>& wait, TextConstraint constraint, absl::Time deadline) {
    std::string key;
    for (const std::string* part : constraint.parts()) absl::StrAppend(&key, part->size(), ",", *part);
    std::shared_ptr<WorkPool::Task> task;
    std::optional<Result> known;
    Done done;
    {
      absl::MutexLock lock(&mutex_);
      if (!wait->done_) return;  // stopped before it began
      if (const auto found = known_.find(key); found != known_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        known = found->second->second;
        done = std::exchange(wait->done_, nullptr);
      } else {
        wait->key_ = key;
        wait->timer_id_ = pool_.timer().At(deadline, [weak = wait->self_] {
          if (const auto self = weak.lock()) {
            self->Stop(absl::DeadlineExceededError("the request's deadline has passed"));
          }
        });
        Flight& flight = flights_[key];
        flight.waits.push_back(wait);
        if (flight.task == nullptr) {
          task = flight.task =
              pool_.Make(absl::InfiniteFuture(),
                         [this, key, constraint = std::move(constraint)](WorkPool::Task& running) {
                           Result result = absl::UnknownError("not compiled");
                           if (running.stopped().ok()) result = compiler_(constraint);
                           // What was stopped has failed for that reason.
                           if (absl::Status stopped = running.stopped(); !stopped.ok())
                             result = std::move(stopped);
                           Land(key, &running, std::move(result));
                         });
        }
      }
    }
    if (known) return done(*std::move(known));
    if (task != nullptr) pool_.Start(task);
  }

  // Waits end with Unavailable. Idempotent.
  void Shutdown() { pool_.Shutdown(); }
  // See WorkPool.
  absl::Duration Silence() const { return pool_.Silence(); }

 private:
  using Entry = std::pair<std::string, Result>;
  struct Flight {
    std::shared_ptr<WorkPool::Task> task;
    std::vector<std::shared_ptr<Wait>> waits;
  };

  void Land(const std::string& key, const WorkPool::Task* task, Result result) {
    std::vector<Done> dones;
    {
      absl::MutexLock lock(&mutex_);
      const auto flight = flights_.find(key);
      // A stopped one may have been replaced by another of the same text.
      if (flight == flights_.end() || flight->second.task.get() != task) return;
      for (const auto& wait : flight->second.waits) {
        pool_.timer().Cancel(wait->timer_id_);
        dones.push_back(std::exchange(wait->done_, nullptr));
      }
      flights_.erase(flight);
      const absl::Status& status = result.status();
      if (status.ok() || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) {
        Keep(key, result);
      }
    }
    for (const Done& done : dones) done(result);
  }

  void Keep(const std::string& key, const Result& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    entries_.emplace_front(key, result);
    known_[key] = entries_.begin();
    bytes_ += key.size();
    while (entries_.size() > options_.max_entries || (bytes_ > options_.max_bytes && entries_.size() > 1)) {
      bytes_ -= entries_.back().first.size();
      known_.erase(entries_.back().first);
      entries_.pop_back();
    }
  }

  void StopWait(Wait* wait, absl::Status reason) {
    Done done;
    std::shared_ptr<WorkPool::Task> unwanted;
    {
      absl::MutexLock lock(&mutex_);
      done = std::exchange(wait->done_, nullptr);
      if (!done) return;
      if (wait->timer_id_ != 0) pool_.timer().Cancel(wait->timer_id_);
      const auto flight = flights_.find(wait->key_);
      if (flight != flights_.end()) {
        std::erase_if(flight->second.waits, [wait](const auto& one) { return one.get() == wait; });
        if (flight->second.waits.empty()) {
          unwanted = std::move(flight->second.task);
          flights_.erase(flight);
        }
      }
    }
    if (unwanted != nullptr) unwanted->Stop(absl::CancelledError("nothing waits for it any more"));
    done(std::move(reason));
  }

  const Options options_;
  const Compiler compiler_;
  absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the last used first
  absl::flat_hash_map<std::string, typename std::list<Entry>::iterator> known_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Flight> flights_ ABSL_GUARDED_BY(mutex_);
  WorkPool pool_;  // last: its threads end before what they use
};

}  // namespace aludel
