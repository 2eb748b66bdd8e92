#include "server/process/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace aludel {

absl::Status NotifyServiceManager(absl::string_view state) {
  const char* name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || *name == '\0') return absl::OkStatus();
  const size_t length = std::strlen(name);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if ((name[0] != '/' && name[0] != '@') || length >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("NOTIFY_SOCKET: \"", name,
                                                   "\" is no path and no @name of at most ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, name, length);
  if (name[0] == '@') address.sun_path[0] = '\0';  // an abstract name begins with a zero and has no end mark
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ssize_t sent = -1;
  if (fd >= 0) {
    sent = sendto(fd, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  if (sent >= 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("NOTIFY_SOCKET ", name, ": ", state, " not sent: ", std::strerror(error)));
}

}  // namespace aludel
