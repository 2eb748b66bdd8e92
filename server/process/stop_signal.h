#pragma once

#include <functional>
#include <utility>

namespace aludel {

// Turns SIGTERM and SIGINT into a return from Wait(), so that a server stops from its main thread and not
// inside a handler. Construct first thing in main, before any thread starts (threads inherit the blocked
// signals) and after any failure signal handler is installed. A second signal, during the stop, ends the
// process at once. SIGHUP stops nothing: it calls what OnHangup set. SIGPIPE is ignored: a closed socket is
// an error code here.
class StopSignal {
 public:
  StopSignal();
  // Before Wait(), which calls it.
  void OnHangup(std::function<void()> callback) { on_hangup_ = std::move(callback); }
  // Blocks until a signal to stop arrives; returns its name. A server calls it when it serves: the service manager
  // is told READY=1 then, and STOPPING=1 when the signal has come.
  const char* Wait();
  // Has Wait() return, as if a service manager asked; while the process stops already it does nothing. Any thread may call it.
  static void Ask();

 private:
  std::function<void()> on_hangup_;
};

}  // namespace aludel
