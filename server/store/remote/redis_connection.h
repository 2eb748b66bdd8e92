#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace aludel {

struct RedisAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
};

// Of "host:port" or "[IPv6]:port", all that the resolver names, at least one. May take as long as the resolver does.
absl::StatusOr<std::vector<RedisAddress>> ResolveAddress(const std::string& host_port);

using AddressResolver =
    std::function<absl::StatusOr<std::vector<RedisAddress>>(const std::string& host_port)>;
// As `resolve`, but Cancelled soon after `stop` becomes true. The resolver cannot be stopped: it has a thread of its own,
// which is left behind then, and uses nothing of the caller's.
absl::StatusOr<std::vector<RedisAddress>> ResolveUnless(const std::atomic<bool>& stop,
                                                        const AddressResolver& resolve,
                                                        const std::string& host_port);

struct RedisReply {
  enum class Kind : uint8_t { kNull, kInteger, kText, kList, kError };
  Kind kind = Kind::kNull;
  int64_t integer = 0;
  std::string text;
  std::vector<RedisReply> list;
};

// The words of a command, which are looked at until the call returns.
using RedisCommand = std::vector<absl::string_view>;

// One connection to a Valkey or Redis server, whose protocol (RESP 2) is hiredis's business. Sockets and waiting are
// here, so that every wait has three ends: a moment, a time without a byte in either direction, and what has moved by then
// being too little. A reply has at most kMaxElements elements, and what an idle connection keeps in memory is small.
// Blocks; for one thread at a time. After any error but the server's own (RedisReply::Kind::kError) it is of no
// use: replies are missing.
class RedisConnection {
 public:
  static constexpr size_t kMaxElements = 1 << 16;
  struct Limits {
    absl::Duration silence;  // without a byte: then Unavailable
    absl::Time until;        // MonotonicNow(): then DeadlineExceeded
    // Bytes a second, in both directions together, from the first `silence` of a call on; less is DeadlineExceeded.
    double least_rate = 0;
    // Where it becomes true, all ends soon: Cancelled.
    const std::atomic<bool>* stop = nullptr;
    // Called with the first bytes of an answer, where it is set: a long one has begun.
    std::function<void()> on_bytes = nullptr;
  };

  // Connects, and authenticates where there is a password. Unavailable, DeadlineExceeded or Cancelled; PermissionDenied
  // where the server does not take the password.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& address,
                                                               const std::string& username,
                                                               const std::string& password,
                                                               const Limits& limits);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Sends all commands at once; the replies are in their order.
  absl::StatusOr<std::vector<RedisReply>> Call(absl::Span<const RedisCommand> commands, const Limits& limits);
  absl::StatusOr<RedisReply> Call(const RedisCommand& command, const Limits& limits);

 private:
  struct Reader;

  explicit RedisConnection(int socket);
  // Until the socket can be read or, with `writes`, written. What is there already is in time, however late it is
  // looked for: this thread may have had no processor.
  absl::Status Wait(bool writes, absl::Time silent_since, const Limits& limits) const;
  // How much the socket takes, and gives.
  absl::StatusOr<size_t> Send(absl::string_view* bytes) const;
  absl::StatusOr<size_t> Receive();
  // What there is of replies, up to so many.
  absl::Status TakeReplies(size_t most, std::vector<RedisReply>* replies);

  const int socket_;
  const std::unique_ptr<Reader> reader_;
};

}  // namespace aludel
