#include "server/process/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observe/watchdog.h"
#include "server/process/stop_signal.h"
#include "server/process/timer.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// A service manager's end: a datagram socket under a name of this process, which NOTIFY_SOCKET says.
class Listener {
 public:
  explicit Listener(const std::string& name) : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), length), 0) << std::strerror(errno);
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~Listener() {
    unsetenv("NOTIFY_SOCKET");
    close(fd_);
  }
  std::string Next() {
    char bytes[256];
    const ssize_t size = recv(fd_, bytes, sizeof(bytes), 0);
    return size < 0 ? std::strerror(errno) : std::string(bytes, size);
  }

 private:
  const int fd_;
};

std::string Path() { return absl::StrCat(::testing::TempDir(), "notify-", getpid()); }

TEST(ServiceManager, IsToldOverAPathAndOverAnAbstractName) {
  for (const std::string& name : {Path(), absl::StrCat("@aludel-notify-", getpid())}) {
    Listener listener(name);
    EXPECT_TRUE(NotifyServiceManager("READY=1").ok());
    EXPECT_EQ(listener.Next(), "READY=1") << name;
    unlink(name.c_str());
  }
}

TEST(ServiceManager, IsNotMissedWhereNobodyAsked) {
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(NotifyServiceManager("READY=1").ok());
}

TEST(ServiceManager, IsNamedWhereItCannotBeReached) {
  setenv("NOTIFY_SOCKET", Path().c_str(), 1);
  const absl::Status gone = NotifyServiceManager("READY=1");
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(gone.message()), HasSubstr(Path() + ": READY=1 not sent"));
  setenv("NOTIFY_SOCKET", "relative", 1);
  EXPECT_EQ(NotifyServiceManager("READY=1").code(), absl::StatusCode::kInvalidArgument);
  setenv("NOTIFY_SOCKET", ("/" + std::string(200, 'x')).c_str(), 1);
  EXPECT_EQ(NotifyServiceManager("READY=1").code(), absl::StatusCode::kInvalidArgument);
  unsetenv("NOTIFY_SOCKET");
}

TEST(ServiceManager, HearsThatAServerServesAndThatItStops) {
  Listener listener(Path());
  std::thread server([] {
    StopSignal stop;
    EXPECT_STREQ(stop.Wait(), "SIGTERM");
  });
  EXPECT_EQ(listener.Next(), "READY=1");
  pthread_kill(server.native_handle(), SIGTERM);
  EXPECT_EQ(listener.Next(), "STOPPING=1");
  server.join();
  unlink(Path().c_str());
}

TEST(ServiceManager, HearsFromAWatchdogWhoseThreadsAllRun) {
  Listener listener(Path());
  Timer timer;
  Watchdog silent({{"the engine", [] { return absl::Seconds(4); }}}, absl::Seconds(3), &timer);
  silent.Stop();
  EXPECT_TRUE(NotifyServiceManager("nothing before this").ok());
  Watchdog watchdog({{"the engine", [] { return absl::ZeroDuration(); }}}, absl::Seconds(3), &timer);
  EXPECT_EQ(listener.Next(), "nothing before this");
  EXPECT_EQ(listener.Next(), "WATCHDOG=1");
  EXPECT_EQ(listener.Next(), "WATCHDOG=1");
  watchdog.Stop();
  unlink(Path().c_str());
}

}  // namespace
}  // namespace aludel
