#include "server/store/remote/redis_connection.h"

#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr size_t kReceiveBytes = 256 * 1024;
// Of what is received and not yet a whole reply. The largest reply is a record, of which no larger one is written.
constexpr size_t kMaxPendingBytes = 256 << 20;
constexpr int kMaxNesting = 4;
// How often a wait looks for its stop.
constexpr absl::Duration kStopInterval = absl::Milliseconds(100);

absl::Status Failed(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

RedisReply ToReply(const redisReply& from, int nesting = 0) {
  RedisReply reply;
  switch (from.type) {
    case REDIS_REPLY_INTEGER:
      reply.kind = RedisReply::Kind::kInteger;
      reply.integer = from.integer;
      break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      reply.kind = RedisReply::Kind::kText;
      reply.text.assign(from.str, from.len);
      break;
    case REDIS_REPLY_ERROR:
      reply.kind = RedisReply::Kind::kError;
      reply.text.assign(from.str, from.len);
      break;
    case REDIS_REPLY_ARRAY:
      reply.kind = RedisReply::Kind::kList;
      for (size_t i = 0; nesting < kMaxNesting && i < from.elements; ++i) {
        reply.list.push_back(ToReply(*from.element[i], nesting + 1));
      }
      break;
    default:
      break;
  }
  return reply;
}

std::string Encode(absl::Span<const RedisCommand> commands) {
  std::string bytes;
  std::vector<const char*> words;
  std::vector<size_t> lengths;
  for (const RedisCommand& command : commands) {
    words.clear();
    lengths.clear();
    for (const absl::string_view word : command) {
      words.push_back(word.data());
      lengths.push_back(word.size());
    }
    char* encoded = nullptr;
    const int size =
        redisFormatCommandArgv(&encoded, static_cast<int>(words.size()), words.data(), lengths.data());
    if (size < 0) continue;  // out of memory: its reply does not come, and the call ends in an error
    bytes.append(encoded, static_cast<size_t>(size));
    redisFreeCommand(encoded);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> ResolveAddress(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError(absl::StrCat(host_port, ": no port"));
  std::string host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), host_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    address.bytes = one->ai_addrlen;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

struct RedisConnection::Reader {
  redisReader* const reader = redisReaderCreate();
  std::vector<char> buffer = std::vector<char>(kReceiveBytes);

  Reader() = default;
  ~Reader() { redisReaderFree(reader); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

RedisConnection::RedisConnection(int socket) : socket_(socket), reader_(std::make_unique<Reader>()) {}

RedisConnection::~RedisConnection() { close(socket_); }

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const SocketAddress& address,
                                                                       const std::string& username,
                                                                       const std::string& password,
                                                                       const Limits& limits) {
  const int file = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file < 0) return Failed("socket", errno);
  std::unique_ptr<RedisConnection> connection(new RedisConnection(file));
  const int one = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (connect(file, reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0) {
    if (errno != EINPROGRESS) return Failed("connect", errno);
    ALUDEL_RETURN_IF_ERROR(connection->Wait(/*writes=*/true, MonotonicNow(), limits));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Failed("connect", error);
  }
  if (password.empty()) return connection;
  RedisCommand command = {"AUTH"};
  if (!username.empty()) command.emplace_back(username);
  command.emplace_back(password);
  ALUDEL_ASSIGN_OR_RETURN(const RedisReply reply, connection->Call(command, limits));
  if (reply.kind != RedisReply::Kind::kText) return absl::PermissionDeniedError(reply.text);
  return connection;
}

absl::Status RedisConnection::Wait(bool writes, absl::Time silent_since, const Limits& limits) const {
  const absl::Time silent_until = silent_since + limits.silence;
  const absl::Time end = std::min(limits.until, silent_until);
  for (;;) {
    if (limits.stop != nullptr && limits.stop->load())
      return absl::CancelledError("it is not in use any more");
    const absl::Duration left = std::max(end - MonotonicNow(), absl::ZeroDuration());
    pollfd waits = {.fd = socket_, .events = static_cast<int16_t>(writes ? POLLIN | POLLOUT : POLLIN)};
    const timespec timeout = absl::ToTimespec(std::min(left, kStopInterval));
    const int ready = ppoll(&waits, 1, &timeout, nullptr);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Failed("poll", errno);
    if (left > absl::ZeroDuration()) continue;
    if (limits.until < silent_until) return absl::DeadlineExceededError("no answer in time");
    return absl::UnavailableError("no answer in time");
  }
}

absl::StatusOr<bool> RedisConnection::Send(absl::string_view* bytes) const {
  const ssize_t sent = send(socket_, bytes->data(), bytes->size(), MSG_NOSIGNAL);
  if (sent >= 0) {
    bytes->remove_prefix(static_cast<size_t>(sent));
    return sent > 0;
  }
  if (errno == EAGAIN || errno == EINTR) return false;
  return Failed("send", errno);
}

absl::StatusOr<bool> RedisConnection::Receive() {
  const ssize_t got = recv(socket_, reader_->buffer.data(), reader_->buffer.size(), 0);
  if (got == 0) return absl::UnavailableError("the remote has closed the connection");
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return Failed("recv", errno);
  }
  if (redisReaderFeed(reader_->reader, reader_->buffer.data(), static_cast<size_t>(got)) != REDIS_OK ||
      reader_->reader->len > kMaxPendingBytes) {
    return absl::UnavailableError("a reply that is too large");
  }
  return true;
}

absl::Status RedisConnection::TakeReplies(size_t most, std::vector<RedisReply>* replies) {
  while (replies->size() < most) {
    void* raw = nullptr;
    if (redisReaderGetReply(reader_->reader, &raw) != REDIS_OK) {
      return absl::UnavailableError(absl::StrCat("not Redis's protocol: ", reader_->reader->errstr));
    }
    if (raw == nullptr) return absl::OkStatus();
    replies->push_back(ToReply(*static_cast<redisReply*>(raw)));
    freeReplyObject(raw);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Call(absl::Span<const RedisCommand> commands,
                                                              const Limits& limits) {
  const std::string encoded = Encode(commands);
  absl::string_view unsent = encoded;
  std::vector<RedisReply> replies;
  absl::Time silent_since = MonotonicNow();
  while (replies.size() < commands.size()) {
    bool moved = false;
    if (!unsent.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(moved, Send(&unsent));
    }
    ALUDEL_ASSIGN_OR_RETURN(const bool received, Receive());
    if (received) ALUDEL_RETURN_IF_ERROR(TakeReplies(commands.size(), &replies));
    if (moved || received) {
      silent_since = MonotonicNow();
      if (replies.size() == commands.size()) break;
      if (silent_since >= limits.until) return absl::DeadlineExceededError("no answer in time");
      if (limits.stop != nullptr && limits.stop->load())
        return absl::CancelledError("it is not in use any more");
    } else {
      ALUDEL_RETURN_IF_ERROR(Wait(!unsent.empty(), silent_since, limits));
    }
  }
  return replies;
}

absl::StatusOr<RedisReply> RedisConnection::Call(const RedisCommand& command, const Limits& limits) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<RedisReply> replies, Call(absl::MakeConstSpan(&command, 1), limits));
  return std::move(replies.front());
}

}  // namespace aludel
