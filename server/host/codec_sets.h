#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/codec/codec.h"
#include "runtime/status_macros.h"

namespace aludel {

// Which artifact a set of codecs was opened from.
struct ArtifactOrigin {
  std::string directory;      // "": of none
  std::string version;        // the directory's own name
  std::string manifest_hash;  // HashManifest
  std::string producer_hash;
  // Format and hash of its encoder -> what its frames depend on beside that.
  std::map<std::string, std::string> layouts;
};

// A server's side of an artifact's wire formats, opened together. Immutable. `Factory` is EncoderFactory or DecoderFactory.
template <typename Factory>
struct CodecSet {
  ArtifactOrigin origin;
  std::vector<std::unique_ptr<Factory>> codecs;  // best first

  // Null for a format that it does not have.
  const Factory* Find(absl::string_view name) const {
    for (const auto& codec : codecs) {
      if (codec->spec().name == name) return codec.get();
    }
    return nullptr;
  }
};

// The sets of a server whose artifact is switched while it runs: the current one, the one before it while peers may still
// ask for it, and older ones until their last handoff has ended. Peers switch at other moments, so that for a while both
// ends have both. A user of a codec holds its set, and no set is freed but by Tend: never on an engine's thread.
// Thread-safe.
//
//   Switch: current -> kept -> (unused for `keep`) retired -> (no user left) freed
//
// One that comes while the kept one is asked for takes the place of the current one where no peer has asked for that:
// peers that lag behind go on. Where both are asked for it waits.
template <typename Factory>
class CodecSets {
 public:
  using Set = CodecSet<Factory>;
  using Handle = std::shared_ptr<const Set>;

  // Retired sets that may wait for their users: memory is bounded, and a switch waits.
  static constexpr size_t kMaxRetired = 1;

  explicit CodecSets(Handle first) : current_(std::move(first)) {}

  Handle current() const {
    absl::MutexLock lock(&mutex_);
    return current_;
  }
  // The current one, and behind it the one before while it is kept.
  std::vector<Handle> offered() const {
    absl::MutexLock lock(&mutex_);
    if (kept_ == nullptr) return {current_};
    return {current_, kept_};
  }
  // In the current set; null: it has none of the name. Holds the set.
  std::shared_ptr<const Factory> Find(absl::string_view name) const {
    const Handle set = current();
    const Factory* const found = set->Find(name);
    return found == nullptr ? nullptr : std::shared_ptr<const Factory>(set, found);
  }
  // The spec of that one; null as above.
  std::shared_ptr<const CodecSpec> FindSpec(absl::string_view name) const {
    const auto codec = Find(name);
    return codec == nullptr ? nullptr : std::shared_ptr<const CodecSpec>(codec, &codec->spec());
  }
  // The one of this encoder, which may be that of the kept set; where none is, as Find(name).
  std::shared_ptr<const Factory> Find(absl::string_view name, absl::string_view encoder_hash,
                                      absl::Time now) {
    for (const Handle& set : offered()) {
      const Factory* const found = set->Find(name);
      if (found == nullptr || found->spec().artifact_hash != encoder_hash) continue;
      if (!encoder_hash.empty()) Used(set, now);  // formats of no artifact are the same in all
      return std::shared_ptr<const Factory>(set, found);
    }
    return Find(name);
  }
  // A request goes by this set.
  void Used(const Handle& set, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (set == current_) current_used_ = now;
    if (set == kept_) kept_used_ = now;
  }

  // Whether there is room for another one: as Switch. Before much is read for it.
  absl::Status CheckRoom(absl::Time now, absl::Duration keep) const {
    absl::MutexLock lock(&mutex_);
    return Room(now, keep);
  }
  // From now on `next` is the current one; nothing changes where it is that already. Aborted where requests still use
  // older ones, or have asked for the current one and the one before within `keep`: try again.
  absl::Status Switch(Handle next, absl::Time now, absl::Duration keep) {
    absl::MutexLock lock(&mutex_);
    if (next == current_) return absl::OkStatus();
    if (next == kept_) {
      std::swap(current_, kept_);
      current_used_ = std::exchange(kept_used_, now);
      return absl::OkStatus();
    }
    ALUDEL_RETURN_IF_ERROR(Room(now, keep));
    if (IsUsed(kept_, kept_used_, now, keep)) {
      retired_.push_back(std::move(current_));
    } else {
      if (kept_ != nullptr) retired_.push_back(std::move(kept_));
      kept_ = std::move(current_);
      kept_used_ = now;
    }
    current_ = std::move(next);
    current_used_ = absl::InfinitePast();
    return absl::OkStatus();
  }

  // To be called regularly, where memory may be freed.
  void Tend(absl::Time now, absl::Duration keep) {
    std::vector<Handle> unused;  // freed behind the lock
    absl::MutexLock lock(&mutex_);
    if (kept_ != nullptr && !IsUsed(kept_, kept_used_, now, keep)) retired_.push_back(std::move(kept_));
    for (auto set = retired_.begin(); set != retired_.end();) {
      // A retired set is not given out any more: one that has no user now has none later.
      if (set->use_count() > 1) {
        ++set;
        continue;
      }
      unused.push_back(std::move(*set));
      set = retired_.erase(set);
    }
  }

  // In memory.
  size_t held() const {
    absl::MutexLock lock(&mutex_);
    return 1 + (kept_ != nullptr ? 1 : 0) + retired_.size();
  }

 private:
  static bool IsUsed(const Handle& set, absl::Time used, absl::Time now, absl::Duration keep) {
    return set != nullptr && now - used < keep;
  }
  absl::Status Room(absl::Time now, absl::Duration keep) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (retired_.size() + (kept_ == nullptr ? 0 : 1) > kMaxRetired) {
      return absl::AbortedError(
          absl::StrCat("requests still use codecs of ", retired_.size(), " artifacts from before"));
    }
    if (IsUsed(kept_, kept_used_, now, keep) && IsUsed(current_, current_used_, now, keep)) {
      return absl::AbortedError(absl::StrCat("artifact ", kept_->origin.directory, " and ",
                                             current_->origin.directory, " are both asked for still"));
    }
    return absl::OkStatus();
  }

  mutable absl::Mutex mutex_;
  Handle current_ ABSL_GUARDED_BY(mutex_);
  absl::Time current_used_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Handle kept_ ABSL_GUARDED_BY(mutex_);  // null: none
  absl::Time kept_used_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::vector<Handle> retired_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
