#include "server/bench/ttft/child_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr size_t kLogTailBytes = 1500;

// Whole lines at the end of a file.
std::string TailOf(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  std::string log = text.str();
  if (log.size() <= kLogTailBytes) return log;
  log.erase(0, log.size() - kLogTailBytes);
  return log.substr(log.find('\n') + 1);
}

std::string EndOf(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was ended by signal ", WTERMSIG(status));
  return absl::StrCat("ended with code ", WEXITSTATUS(status));
}

// In the child, between fork and exec: only what is safe there.
[[noreturn]] void Become(const char* program, const char* config, const char* log, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);  // it died between fork and prctl
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
  const int null = open("/dev/null", O_RDONLY);
  const int out = open(log, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execl(program, program, "--config", config, nullptr);
  _exit(127);
}

}  // namespace

int FreePort() {
  constexpr int kFirst = 10000;
  constexpr int kCount = 20000;
  static int next = getpid() * 101;
  for (int i = 0; i < kCount; ++i) {
    const int port = kFirst + next++ % kCount;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (is_free) return port;
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<ChildServer>> ChildServer::Start(const std::string& program,
                                                                const std::string& folder,
                                                                const std::string& name,
                                                                const std::string& config) {
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(program, ": ", std::strerror(errno),
                     "; --bin names the folder of the servers, build them or unpack a bundle"));
  }
  const std::string path = absl::StrCat(folder, "/", name, ".textproto");
  const std::string log = absl::StrCat(folder, "/", name, ".log");
  std::ofstream out(path);
  out << config;
  out.close();
  if (!out.good()) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(program.c_str(), path.c_str(), log.c_str(), parent);
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  return std::unique_ptr<ChildServer>(new ChildServer(pid, name, log));
}

ChildServer::~ChildServer() {
  Terminate();
  for (const absl::Time until = MonotonicNow() + kPatience; !HasEnded();) {
    if (MonotonicNow() > until) kill(pid_, SIGKILL);
    absl::SleepFor(kPoll);
  }
}

bool ChildServer::HasEnded() {
  if (ended_) return true;
  const pid_t found = waitpid(pid_, &exit_status_, WNOHANG);
  // Where SIGCHLD is ignored, as some supervisors leave it, the kernel has buried the child already.
  ended_ = found == pid_ || (found < 0 && errno == ECHILD);
  return ended_;
}

void ChildServer::Terminate() {
  if (!HasEnded()) kill(pid_, SIGTERM);
}

absl::Status ChildServer::Check() {
  if (!HasEnded()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("aludel-", name_, " ", EndOf(exit_status_), "; its log, ", log_,
                                             ", ends with\n", TailOf(log_)));
}

}  // namespace aludel
