#include "runtime/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace aludel {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), ""), stops_.end());
}

std::string StopMatcher::Push(absl::string_view text) {
  if (matched_) return "";
  held_.append(text.data(), text.size());
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    matched_ = true;
    held_.resize(first);
    return std::exchange(held_, "");
  }
  // The longest tail that begins a stop string waits.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (absl::EndsWith(held_, absl::string_view(stop.data(), size))) keep = size;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace aludel
