#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "runtime/kv/prefix_watcher.h"
#include "server/rpc/cache_events/key_log.h"

namespace aludel {

// Which beginnings of prompts an engine's prefix cache holds, as keys that gateways route by. A block counts while every
// block before it is there, as a prompt is looked up from its start on: a log's reader may stop at the first key that is
// missing. Blocks of one prompt in two formats are one key. Bounded by the prefix cache. Thread-safe.
class CachedPrompts : public PrefixWatcher {
 public:
  // `model`: as requests name it. `salt_of` gives the salt that a request came with for the one that its blocks are cached
  // under, and nothing where those are found no more. `log` must outlive this.
  using SaltOf = std::function<std::optional<absl::string_view>(absl::string_view cache_salt)>;
  CachedPrompts(absl::string_view model, SaltOf salt_of, KeyLog* log)
      : model_(HashTexts({model})), salt_of_(std::move(salt_of)), log_(log) {}

  void OnStored(const Block& block) override;
  void OnRemoved(const PrefixHash& hash) override;
  // Nothing that was cached is found any more. `reset` makes it so, and changes what salt_of gives.
  void Clear(const std::function<void()>& reset);

 private:
  // A block that is cached, or one that was not heard of and is in front of one that is.
  struct Node {
    PrefixHash hash;
    Node* before = nullptr;  // null: it is a prompt's first, or not heard of
    absl::flat_hash_set<Node*> next;
    PromptHash prompt;  // up to its end
    int64_t end = 0;    // tokens
    bool stored = false;
    bool told = false;  // stored, and all before it are
  };

  Node* NodeOf(const PrefixHash& hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // With those behind it.
  void Tell(Node* node, bool stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t model_;
  const SaltOf salt_of_;
  KeyLog* const log_;
  absl::Mutex mutex_;
  absl::flat_hash_map<PrefixHash, std::unique_ptr<Node>> nodes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
