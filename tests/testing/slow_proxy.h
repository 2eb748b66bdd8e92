#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace aludel {

// A socket that listens on a free port of loopback.
class LoopbackListener {
 public:
  LoopbackListener();
  ~LoopbackListener();
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  const std::string& address() const { return address_; }
  // -1: nothing came for a while.
  int Accept() const;

 private:
  const int file_;
  std::string address_;
};

// Between a store and its remote, a Redis on loopback.
class SlowProxy {
 public:
  explicit SlowProxy(int to_port) : to_port_(to_port), thread_([this] { Run(); }) {}
  ~SlowProxy();
  SlowProxy(const SlowProxy&) = delete;
  SlowProxy& operator=(const SlowProxy&) = delete;

  const std::string& address() const { return listener_.address(); }
  // From now on the remote's answers come byte by byte, each so long after the one before; zero: as they are.
  void Drip(absl::Duration interval) { drip_ms_ = static_cast<int>(absl::ToInt64Milliseconds(interval)); }
  // From now on connections that ask for a value of at least a kilobyte, and of less than this, wait for LetThrough.
  void HoldValuesBelow(size_t bytes) { held_below_ = bytes; }
  void LetThrough() { held_below_ = 0; }
  // Ends the connections that wait; what they were to get is lost.
  void CutHeld() { cuts_ = true; }
  // Connections that wait.
  int held() const { return held_; }

 private:
  void Run();
  void Pass(int client);
  // Whether the answer that begins here is to wait.
  bool IsHeld(int server) const;
  static bool Copy(int from, int to, size_t most);

  const int to_port_;
  const LoopbackListener listener_;
  std::atomic<bool> stop_{false};
  std::atomic<int> drip_ms_{0};
  std::atomic<int> held_{0};
  std::atomic<bool> cuts_{false};
  std::atomic<size_t> held_below_{0};
  std::vector<std::thread> connections_;
  std::thread thread_;
};

}  // namespace aludel
