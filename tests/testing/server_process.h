#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace aludel {

// A TCP port that was free a moment ago.
int FreePort();

// Body of GET http://127.0.0.1:port/path; "" when nobody answers with 200.
std::string HttpGet(int port, const std::string& path);

// Value of one sample of a Prometheus text, e.g. `aludel_kv_blocks{model="chat",state="reserved"}`; -1 when
// it is not there.
double MetricValue(const std::string& text, const std::string& sample);

// A server binary of this build as a child process. Dies with this object (and with the test process), leaves
// no zombie, and when the test has failed prints the end of its log and keeps the file.
class ServerProcess {
 public:
  // `binary` is a file of the build's bin folder; `config` its configuration. Fails the test when it
  // cannot start.
  ServerProcess(const std::string& binary, const std::string& config, int admin_port);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // False, with the reason on stderr, when it exits or is not ready in time.
  bool WaitReady(absl::Duration limit = absl::Seconds(60));
  void Signal(int signal);
  pid_t pid() const { return pid_; }
  int admin_port() const { return admin_port_; }
  // Exit status as waitpid gives it, or -1 when it does not end in time.
  int WaitExit(absl::Duration limit = absl::Seconds(30));

  double Metric(const std::string& sample) { return MetricValue(HttpGet(admin_port_, "/metrics"), sample); }
  // True as soon as the metric has the value.
  bool WaitMetric(const std::string& sample, double value, absl::Duration limit = absl::Seconds(10));
  std::string Log() const;

 private:
  const std::string name_;
  const int admin_port_;
  std::string log_path_;
  std::string config_path_;
  pid_t pid_ = -1;
};

}  // namespace aludel
