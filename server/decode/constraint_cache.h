#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/pool/compile_cache.h"

namespace aludel {

// The constraints asked for last, compiled: requests with the same schema share one automaton, and with it
// its masks. Schemas are compiled on a thread of its own, never on the caller's: that is gRPC's. Thread-safe.
class ConstraintCache {
 public:
  static constexpr size_t kMaxEntries = 16;
  using Cache = CompileCache<std::shared_ptr<TokenAutomaton>>;
  using Wait = Cache::Wait;

  // The tokenizer must outlive the cache. `vocab` is the model's.
  ConstraintCache(const Tokenizer* tokenizer, std::vector<int> eos_ids, int vocab)
      : tokenizer_(tokenizer),
        eos_ids_(std::move(eos_ids)),
        vocab_(vocab),
        cache_({.max_entries = kMaxEntries, .max_bytes = kMaxEntries * kMaxSchemaBytes},
               [this](const TextConstraint& constraint) { return Compile(constraint); }) {}

  // See CompileCache. InvalidArgument says what of the schema is not supported, FailedPrecondition what is
  // too large.
  std::shared_ptr<Wait> Make(Cache::Done done) { return cache_.Make(std::move(done)); }
  void Begin(const std::shared_ptr<Wait>& wait, TextConstraint constraint, absl::Time deadline) {
    cache_.Begin(wait, std::move(constraint), deadline);
  }
  absl::Duration Silence() const { return cache_.Silence(); }  // see WorkPool

 private:
  Cache::Result Compile(const TextConstraint& constraint);
  std::shared_ptr<const TokenTable> Table();

  const Tokenizer* const tokenizer_;
  const std::vector<int> eos_ids_;
  const int vocab_;
  absl::Mutex mutex_;
  std::shared_ptr<const TokenTable> table_ ABSL_GUARDED_BY(mutex_);  // made for the first constraint
  Cache cache_;                                                      // last: its threads use the above
};

}  // namespace aludel
