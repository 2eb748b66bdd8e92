#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aludel {

// Finds stop strings in text that arrives in pieces, wherever the pieces break. Text that may still become a
// stop string is held back; a stop string itself is emitted only where it is to be included. Not thread-safe.
class StopMatcher {
 public:
  // Empty stop strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);
  // The text that may be shown now. After a match everything is swallowed.
  std::string Push(absl::string_view text);
  // Text that is shown whatever it holds: no stop string ends in it, but one may begin there. Before any Push.
  std::string Pass(std::string text);
  // The text held back, at the end of the answer.
  std::string Flush();
  bool matched() const { return !matched_.empty(); }
  // The stop string that was found; empty: none.
  const std::string& match() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  size_t longest_ = 0;  // of stops_
  std::string passed_;  // what was shown last, in which a stop string may begin
  std::string held_;
  bool include_;
  std::string matched_;
};

}  // namespace aludel
