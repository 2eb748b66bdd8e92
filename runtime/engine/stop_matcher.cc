#include "runtime/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace aludel {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), ""), stops_.end());
}

std::string StopMatcher::Push(absl::string_view text) {
  if (matched()) return "";
  held_.append(text.data(), text.size());
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at >= first) continue;
    first = at;
    matched_ = stop;
  }
  if (matched()) {
    held_.resize(first + (include_ ? matched_.size() : 0));
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
