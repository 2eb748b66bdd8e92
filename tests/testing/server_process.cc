#include "tests/testing/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr size_t kLogTailBytes = 4000;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

int FreePort() {
  // Below the ephemeral ports, so that no outgoing connection takes one before its server has it; every port
  // once in this process, and concurrent tests start at different places.
  constexpr int kFirst = 10000;
  constexpr int kCount = 20000;
  static std::atomic<int> next{getpid() * 101};
  for (int i = 0; i < kCount; ++i) {
    const int port = kFirst + next++ % kCount;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(port);
    const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (is_free) return port;
  }
  return 0;
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {.tv_sec = 5};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const sockaddr_in address = Loopback(port);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
        answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.1 200 ") || body == std::string::npos) return "";
  return answer.substr(body + 4);
}

double MetricValue(const std::string& text, const std::string& sample) {
  const size_t at = text.find(absl::StrCat("\n", sample, " "));
  if (at == std::string::npos) return -1;
  const size_t begin = at + sample.size() + 2;
  double value = -1;
  return absl::SimpleAtod(text.substr(begin, text.find('\n', begin) - begin), &value) ? value : -1;
}

ServerProcess::ServerProcess(const std::string& binary, const std::string& config, int admin_port)
    : name_(absl::StrCat(binary, "-", admin_port)), admin_port_(admin_port) {
  const std::string base = absl::StrCat(::testing::TempDir(), name_);
  log_path_ = absl::StrCat(base, ".log");
  config_path_ = absl::StrCat(base, ".textproto");
  std::ofstream(config_path_) << config;
  const std::string path = absl::StrCat(ALUDEL_BIN_DIR, "/", binary);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);  // the test died between fork and prctl
    const int log = open(log_path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execl(path.c_str(), path.c_str(), "--config", config_path_.c_str(), nullptr);
    _exit(127);
  }
  EXPECT_GT(pid_, 0) << "fork failed";
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (::testing::Test::HasFailure()) {
    const std::string log = Log();
    std::fprintf(stderr, "--- end of %s (%s)\n%s---\n", name_.c_str(), log_path_.c_str(),
                 log.substr(log.size() > kLogTailBytes ? log.size() - kLogTailBytes : 0).c_str());
  } else {
    unlink(log_path_.c_str());
    unlink(config_path_.c_str());
  }
}

bool ServerProcess::WaitReady(absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (absl::Now() < until) {
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      std::fprintf(stderr, "%s ended with status %d\n%s\n", name_.c_str(), status, Log().c_str());
      return false;
    }
    if (HttpGet(admin_port_, "/ready") == "ok\n") return true;
    absl::SleepFor(kPoll);
  }
  std::fprintf(stderr, "%s is not ready in time\n%s\n", name_.c_str(), Log().c_str());
  return false;
}

void ServerProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

int ServerProcess::WaitExit(absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (pid_ > 0 && absl::Now() < until) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return status;
    }
    absl::SleepFor(kPoll);
  }
  return -1;
}

bool ServerProcess::WaitMetric(const std::string& sample, double value, absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  double found = -1;
  while (absl::Now() < until) {
    found = Metric(sample);
    if (found == value) return true;
    absl::SleepFor(kPoll);
  }
  std::fprintf(stderr, "%s: %s is %g, want %g\n", name_.c_str(), sample.c_str(), found, value);
  return false;
}

std::string ServerProcess::Log() const {
  std::ifstream in(log_path_);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace aludel
