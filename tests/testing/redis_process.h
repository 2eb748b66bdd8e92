#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace aludel {

// A redis-server on a free port of loopback that writes nothing to disk, as a child process: dies with this object and
// with the test process.
class RedisProcess {
 public:
  // Further settings as on its command line: "--requirepass", "secret".
  explicit RedisProcess(std::vector<std::string> settings = {});
  ~RedisProcess();
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  int port() const { return port_; }
  std::string address() const;
  // Again on the same port and empty; waits until it listens.
  void Start();
  // Waits for its end.
  void Kill();
  // SIGSTOP: the system still accepts connections and bytes for it.
  void Freeze() const;
  void Thaw() const;

 private:
  const std::vector<std::string> settings_;
  const int port_;
  pid_t pid_ = -1;
};

}  // namespace aludel
