#include "tests/testing/redis_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/server_process.h"

namespace aludel {
namespace {

bool Listens(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return listens;
}

}  // namespace

RedisProcess::RedisProcess(std::vector<std::string> settings)
    : settings_(std::move(settings)), port_(FreePort()) {
  Start();
}

RedisProcess::~RedisProcess() {
  if (pid_ > 0) Kill();
}

std::string RedisProcess::address() const { return absl::StrCat("127.0.0.1:", port_); }

void RedisProcess::Start() {
  std::vector<std::string> words = {"redis-server", "--port", absl::StrCat(port_), "--bind", "127.0.0.1",
                                    "--save",       "",       "--appendonly",      "no"};
  words.insert(words.end(), settings_.begin(), settings_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);  // the test died between fork and prctl
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    execvp("redis-server", arguments.data());
    _exit(127);
  }
  ASSERT_GT(pid_, 0) << "fork failed";
  for (int i = 0; i < 1000 && !Listens(port_); ++i) {
    ASSERT_EQ(waitpid(pid_, nullptr, WNOHANG), 0) << "redis-server does not start; is it installed?";
    absl::SleepFor(absl::Milliseconds(10));
  }
}

void RedisProcess::Kill() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RedisProcess::Freeze() const {
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);
}

void RedisProcess::Thaw() const { kill(pid_, SIGCONT); }

}  // namespace aludel
