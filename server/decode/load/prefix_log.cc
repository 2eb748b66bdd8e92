#include "server/decode/load/prefix_log.h"

#include <algorithm>
#include <utility>

namespace aludel {

void PrefixLog::Add(v1::PromptPrefixes prefixes) {
  if (prefixes.keys_size() == 0) return;
  prefixes.mutable_keys()->Truncate(std::min<int>(prefixes.keys_size(), static_cast<int>(kMaxPromptKeys)));
  absl::MutexLock lock(&mutex_);
  keys_ += static_cast<size_t>(prefixes.keys_size());
  prompts_.push_back(std::move(prefixes));
  ++end_;
  while (keys_ > kMaxKeys) DropOldest();
}

void PrefixLog::DropOldest() {
  keys_ -= static_cast<size_t>(prompts_.front().keys_size());
  prompts_.pop_front();
}

void PrefixLog::Clear() {
  absl::MutexLock lock(&mutex_);
  while (!prompts_.empty()) DropOldest();
}

void PrefixLog::Read(uint64_t since, v1::LoadReport* report) const {
  absl::MutexLock lock(&mutex_);
  const uint64_t oldest = end_ - prompts_.size();
  uint64_t at = std::clamp(since, oldest, end_);
  size_t keys = 0;
  for (; at < end_ && keys < kMaxReportKeys; ++at) {
    const v1::PromptPrefixes& prompt = prompts_[at - oldest];
    keys += static_cast<size_t>(prompt.keys_size());
    *report->add_prefixes() = prompt;
  }
  report->set_prefixes_end(at);
}

}  // namespace aludel
