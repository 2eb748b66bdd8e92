#pragma once

#include <atomic>

namespace aludel {

// Turns SIGTERM and SIGINT into a return from Wait(), so that a server stops from its main thread and not
// inside a handler. Construct first thing in main, before any thread starts (threads inherit the blocked
// signals) and after any failure signal handler is installed. A second signal, during the stop, ends the
// process at once. SIGPIPE is ignored: a closed socket is an error code here.
class StopSignal {
 public:
  StopSignal();
  // Blocks until a signal arrives; returns its name.
  const char* Wait();
};

}  // namespace aludel
