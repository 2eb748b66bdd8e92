#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/load.pb.h"

namespace aludel {

// The prompts that gateways have sent to this server, as hashes of their beginnings: what tells one gateway what the others
// have left in the prefix cache, and a gateway that has just started what is there. The oldest go first. Thread-safe; bounded.
class PrefixLog {
 public:
  static constexpr size_t kMaxKeys = 65536;  // of all prompts, 512 kB
  static constexpr size_t kMaxPromptKeys =
      256;  // of one, what is longer is cut; prompts of 128k tokens have about 100
  static constexpr size_t kMaxReportKeys = 8192;  // of one report

  void Add(v1::PromptPrefixes prefixes);
  // The prefix cache is forgotten.
  void Clear();
  // Adds prompts to the report from `since` on, which is an earlier report's prefixes_end, or 0.
  void Read(uint64_t since, v1::LoadReport* report) const;

 private:
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<v1::PromptPrefixes> prompts_ ABSL_GUARDED_BY(mutex_);
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;  // prompts that ever came
  size_t keys_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
