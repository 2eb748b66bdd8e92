#include "server/host/adapter_pool.h"

#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// A caller's name goes into answers and logs: a long one is not repeated.
absl::Status NotKnown(const std::string& name) {
  if (name.size() > AdapterPool::kMaxNameBytes) {
    return absl::NotFoundError(absl::StrCat("no adapter has a name of ", name.size(), " bytes"));
  }
  return absl::NotFoundError(absl::StrCat("no adapter ", name));
}

}  // namespace

AdapterPool::AdapterPool(Device* device, LoraWeights::Base base, int max_resident, AdapterCodecs codecs)
    : device_(device),
      base_(std::move(base)),
      max_resident_(max_resident),
      codecs_(std::make_shared<const AdapterCodecs>(std::move(codecs))),
      thread_([this] { Loop(); }) {}

AdapterPool::~AdapterPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
  for (Waiter& waiter : waiters_) waiter.ready(absl::UnavailableError("the server is stopping"));
  for (const EntryRef& entry : resident_) ALUDEL_CHECK(entry->users == 0);
}

absl::Status AdapterPool::Add(const std::string& name, const std::string& directory, CacheOf cache) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an adapter's name has ", name.size(), " bytes, want 1 to ", kMaxNameBytes));
  }
  // Before the files are looked at, which takes a while, and again behind that.
  const auto check = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    const auto found = known_.find(name);
    if (found != known_.end()) {
      const Entry& there = *found->second;
      const std::string text = absl::StrCat("adapter ", name, " is there already, from ", there.directory,
                                            " with cache_of \"", Name(there.cache), "\"");
      std::error_code error;
      const bool same =
          there.cache == cache && std::filesystem::equivalent(there.directory, directory, error);
      if (same) return absl::AlreadyExistsError(text);
      return absl::FailedPreconditionError(absl::StrCat(text, ": unload it first"));
    }
    if (known_.size() < kMaxKnown) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat(known_.size(), " adapters are known, at most as many may be"));
  };
  {
    absl::MutexLock lock(&mutex_);
    ALUDEL_RETURN_IF_ERROR(check());
  }
  ALUDEL_ASSIGN_OR_RETURN(ServedAdapter::Identity identity, ServedAdapter::Check(directory, base_, cache));
  absl::MutexLock lock(&mutex_);
  ALUDEL_RETURN_IF_ERROR(check());
  known_.emplace(name,
                 std::make_shared<Entry>(Entry{
                     .name = name, .directory = directory, .cache = cache, .identity = std::move(identity)}));
  ++changes_;
  return absl::OkStatus();
}

absl::Status AdapterPool::Remove(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = known_.find(name);
  if (found == known_.end()) return NotKnown(name);
  found->second->removed = true;
  known_.erase(found);
  ++changes_;
  dirty_ = true;
  changed_.Signal();
  return absl::OkStatus();
}

uint64_t AdapterPool::Acquire(const std::string& name, absl::Time deadline, Ready ready) {
  absl::StatusOr<Handle> now = NotKnown(name);
  {
    absl::MutexLock lock(&mutex_);
    const auto found = known_.find(name);
    if (found != known_.end()) {
      const EntryRef& entry = found->second;
      const absl::Time time = MonotonicNow();
      const bool turn = waiters_.empty() || time - waiters_.front().since < kPatience;
      if (entry->served != nullptr && turn) {
        now = Take(entry);
      } else if (waiters_.size() >= kMaxWaiting) {
        now = absl::ResourceExhaustedError(absl::StrCat(waiters_.size(), " requests wait for adapters"));
      } else {
        waiters_.push_back({next_wait_, entry, time, deadline, std::move(ready)});
        dirty_ = true;
        changed_.Signal();
        return next_wait_++;
      }
    }
  }
  ready(std::move(now));
  return 0;
}

void AdapterPool::GiveUp(uint64_t wait, const absl::Status& reason) {
  Ready ready;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                    [&](const Waiter& waiter) { return waiter.id == wait; });
    if (found == waiters_.end()) return;
    ready = std::move(found->ready);
    waiters_.erase(found);
    dirty_ = true;  // others may wait behind it
    changed_.Signal();
  }
  ready(reason);
}

AdapterPool::Handle AdapterPool::Take(const EntryRef& entry) {
  ++entry->users;
  entry->last_used = ++clock_;
  return {entry->served.get(), [this, entry](const ServedAdapter*) { Release(entry); }};
}

// On the engine's thread, mostly: nothing is freed here.
void AdapterPool::Release(const EntryRef& entry) {
  absl::MutexLock lock(&mutex_);
  entry->last_used = ++clock_;
  if (--entry->users > 0) return;
  if (waiters_.empty() && !entry->removed) return;
  dirty_ = true;
  changed_.Signal();
}

void AdapterPool::Loop() {
  pthread_setname_np(pthread_self(), "aludel-adapters");
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && !std::exchange(dirty_, false)) {
        absl::Time next = absl::InfiniteFuture();
        for (const Waiter& waiter : waiters_) next = std::min(next, waiter.deadline);
        const absl::Duration wait = next - MonotonicNow();
        if (wait <= absl::ZeroDuration()) break;
        changed_.WaitWithTimeout(&mutex_, wait);
      }
      if (stopping_) return;
      work = NextWork();
    }
    work.dropped.clear();
    for (auto& [ready, answer] : work.answers) ready(std::move(answer));
    if (work.load != nullptr) Load(work.load);
  }
}

AdapterPool::Work AdapterPool::NextWork() {
  Work work;
  Answer(&work);  // first: those who waited for one that was removed meanwhile have it yet
  for (auto entry = resident_.begin(); entry != resident_.end();) {
    if (!(*entry)->removed || (*entry)->users > 0) {
      ++entry;
      continue;
    }
    work.dropped.push_back(std::move((*entry)->served));
    entry = resident_.erase(entry);
  }
  // Waiters that are left want what is not there.
  if (!waiters_.empty() && MakeRoom(&work)) work.load = waiters_.front().entry;
  return work;
}

void AdapterPool::Answer(Work* work) {
  const absl::Time now = MonotonicNow();
  // A waiter that has lost its patience lets none behind it go first.
  bool blocked = false;
  std::deque<Waiter> left;
  for (Waiter& waiter : waiters_) {
    if (now >= waiter.deadline) {
      work->answers.emplace_back(
          std::move(waiter.ready),
          absl::DeadlineExceededError(absl::StrCat("adapter ", waiter.entry->name, ": none of the ",
                                                   max_resident_, " on the device came free in time")));
    } else if (waiter.entry->served != nullptr && !blocked) {
      work->answers.emplace_back(std::move(waiter.ready), Take(waiter.entry));
    } else {
      blocked = blocked || (waiter.entry->served == nullptr && now - waiter.since >= kPatience);
      left.push_back(std::move(waiter));
    }
  }
  waiters_ = std::move(left);
}

bool AdapterPool::MakeRoom(Work* work) {
  if (static_cast<int>(resident_.size()) < max_resident_) return true;
  auto oldest = resident_.end();
  for (auto entry = resident_.begin(); entry != resident_.end(); ++entry) {
    if ((*entry)->users > 0) continue;
    if (oldest == resident_.end() || (*entry)->last_used < (*oldest)->last_used) oldest = entry;
  }
  if (oldest == resident_.end()) return false;
  work->dropped.push_back(std::move((*oldest)->served));
  resident_.erase(oldest);
  ++evictions_;
  return true;
}

void AdapterPool::Load(const EntryRef& entry) {
  std::shared_ptr<const AdapterCodecs> codecs;
  {
    absl::MutexLock lock(&mutex_);
    codecs = codecs_;
  }
  absl::StatusOr<std::unique_ptr<ServedAdapter>> loaded =
      ServedAdapter::Load(device_, entry->directory, base_, *codecs, entry->cache);
  if (loaded.ok()) Announce(*entry, **loaded, *codecs);
  std::vector<Ready> failed;
  {
    absl::MutexLock lock(&mutex_);
    while (loaded.ok() && codecs != codecs_) {  // set meanwhile; the adapter is not handed out yet
      codecs = codecs_;
      mutex_.Unlock();
      (*loaded)->Follow(*codecs);
      mutex_.Lock();
    }
    dirty_ = true;
    ++loads_;
    if (loaded.ok()) {
      entry->served = *std::move(loaded);
      // Its files may be others than those that were added.
      const ServedAdapter& served = *entry->served;
      if (entry->identity.hash != served.hash()) {
        entry->identity = {.hash = served.hash(), .activated = served.activated()};
        ++changes_;
      }
      resident_.push_back(entry);
      return;
    }
    std::deque<Waiter> left;
    for (Waiter& waiter : waiters_) {
      if (waiter.entry == entry) {
        failed.push_back(std::move(waiter.ready));
      } else {
        left.push_back(std::move(waiter));
      }
    }
    waiters_ = std::move(left);
  }
  for (const Ready& ready : failed) ready(loaded.status());
}

std::vector<AdapterCodecs::Format> AdapterPool::formats() const {
  absl::MutexLock lock(&mutex_);
  return codecs_->formats();
}

std::set<std::string> AdapterPool::SetCodecs(AdapterCodecs codecs) {
  const auto fresh = std::make_shared<const AdapterCodecs>(std::move(codecs));
  std::set<std::string> changed;
  std::vector<EntryRef> resident;
  {
    absl::MutexLock lock(&mutex_);
    changed = codecs_->ChangedIn(*fresh);
    codecs_ = fresh;
    resident = resident_;
  }
  for (const EntryRef& entry : resident) {
    Handle adapter;  // one at a time stays: others may be evicted meanwhile
    {
      absl::MutexLock lock(&mutex_);
      if (entry->served == nullptr) continue;
      adapter = Take(entry);
    }
    std::shared_ptr<const AdapterCodecs::Opened> old = adapter->Follow(*fresh);
    absl::MutexLock lock(&mutex_);
    if (old != nullptr) retired_.push_back(std::move(old));
  }
  return changed;
}

void AdapterPool::Tend() {
  std::vector<std::shared_ptr<const AdapterCodecs::Opened>> unused;  // freed behind the lock
  absl::MutexLock lock(&mutex_);
  for (auto old = retired_.begin(); old != retired_.end();) {
    if (old->use_count() > 1) {
      ++old;
      continue;
    }
    unused.push_back(std::move(*old));
    old = retired_.erase(old);
  }
}

void AdapterPool::Announce(Entry& entry, const ServedAdapter& served, const AdapterCodecs& codecs) const {
  if (codecs.formats().empty() || std::exchange(entry.announced, true)) return;
  if (served.activated()) return;  // it has the base's codes
  const auto opened = served.codecs();
  if (opened->decoders.empty()) {
    spdlog::warn("adapter {}: {} has no decoder for it ({}); its prompts are prefilled here", entry.name,
                 codecs.artifact(), served.hash());
    return;
  }
  std::vector<std::string> names;
  for (const auto& codec : opened->decoders) {
    std::string& name = names.emplace_back(codec->spec().name);
    const auto shared = opened->shared.find(name);
    if (shared == opened->shared.end()) continue;
    const auto loss = opened->losses.find(name);
    absl::StrAppend(&name, " by the decoder of ", shared->second);
    if (loss != opened->losses.end()) absl::StrAppendFormat(&name, " (measured loss %.4f)", loss->second);
  }
  spdlog::info("adapter {}: its prompts may come as {}", entry.name, absl::StrJoin(names, ", "));
}

AdapterPool::Known AdapterPool::known() const {
  absl::MutexLock lock(&mutex_);
  Known known{.changes = changes_};
  for (const auto& [name, entry] : known_) {
    known.adapters.push_back({.name = name,
                              .hash = entry->identity.hash,
                              .cache = entry->cache,
                              .activated = entry->identity.activated});
  }
  return known;
}

AdapterStats AdapterPool::stats() const {
  absl::MutexLock lock(&mutex_);
  AdapterStats stats{.known = static_cast<int64_t>(known_.size()),
                     .resident = static_cast<int64_t>(resident_.size()),
                     .waiting = static_cast<int64_t>(waiters_.size()),
                     .loads = loads_,
                     .evictions = evictions_};
  for (const EntryRef& entry : resident_)
    stats.resident_bytes += static_cast<int64_t>(entry->served->weights().bytes());
  return stats;
}

}  // namespace aludel
