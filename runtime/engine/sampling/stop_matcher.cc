#include "runtime/engine/sampling/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace aludel {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), ""), stops_.end());
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

std::string StopMatcher::Pass(std::string text) {
  if (longest_ > 1) {
    passed_ += text;
    passed_.erase(0, passed_.size() - std::min(passed_.size(), longest_ - 1));
  }
  return text;
}

std::string StopMatcher::Push(absl::string_view text) {
  if (matched()) return "";
  held_.append(text.data(), text.size());
  const size_t passed = passed_.size();
  const std::string all = passed == 0 ? "" : passed_ + held_;
  const std::string& searched = passed == 0 ? held_ : all;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = searched.find(stop, passed - std::min(passed, stop.size() - 1));
    if (at >= first) continue;
    first = at;
    matched_ = stop;
  }
  if (matched()) {
    held_.resize(include_ ? first + matched_.size() - passed : std::max(first, passed) - passed);
    return std::exchange(held_, "");
  }
  // The longest tail that begins a stop string waits.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, searched.size()); size > keep; --size) {
      if (absl::EndsWith(searched, absl::string_view(stop.data(), size))) keep = size;
    }
  }
  std::string shown = held_.substr(0, held_.size() - std::min(keep, held_.size()));
  held_.erase(0, shown.size());
  if (!shown.empty()) passed_.clear();
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace aludel
