#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace aludel {

// Progress of one long task after another on stderr: a bar that redraws itself on a terminal, a plain line
// now and then elsewhere. One thread.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();

  // `detail` stands behind the figures. Calls with done == total end the stage's line. Redraws at most ten
  // times a second (a line every ten seconds where stderr is no terminal).
  void Update(absl::string_view stage, int64_t done, int64_t total, absl::string_view detail = "");
  // Ends an unfinished line, so that other output can follow.
  void Break();

 private:
  bool terminal_;
  bool open_ = false;  // a line without its end is on screen
  std::string stage_;
  absl::Time stage_start_;
  absl::Time drawn_;
};

// SIGINT and SIGTERM set a flag instead of killing the process, so that a long task can end tidily; a second
// signal kills.
void StopOnSignals();
bool StopAsked();

}  // namespace aludel
