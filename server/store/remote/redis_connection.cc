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
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr size_t kReceiveBytes = 256 * 1024;
// Of what is received and not yet a whole reply. The largest reply is a record, of which no larger one is written.
constexpr size_t kMaxPendingBytes = 256 << 20;
// How often a wait looks for its stop.
constexpr absl::Duration kStopInterval = absl::Milliseconds(100);

absl::Status Failed(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

// hiredis's callbacks: each makes a reply, or an element in its place in the list that it is of. Null is an error.
RedisReply* MakeReply(const redisReadTask* task, RedisReply::Kind kind) {
  RedisReply* const reply =
      task->parent == nullptr
          ? new RedisReply
          : &static_cast<RedisReply*>(task->parent->obj)->list[static_cast<size_t>(task->idx)];
  reply->kind = kind;
  return reply;
}

void* MakeText(const redisReadTask* task, char* text, size_t bytes) {
  RedisReply* const reply =
      MakeReply(task, task->type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText);
  reply->text.assign(text, bytes);
  return reply;
}

// The type of the count differs between versions of hiredis.
template <typename Count>
void* MakeList(const redisReadTask* task, Count count) {
  auto& elements = *static_cast<size_t*>(task->privdata);
  elements += static_cast<size_t>(count);
  if (elements > RedisConnection::kMaxElements) return nullptr;
  RedisReply* const reply = MakeReply(task, RedisReply::Kind::kList);
  reply->list.resize(static_cast<size_t>(count));
  return reply;
}

void* MakeInteger(const redisReadTask* task, long long value) {  // NOLINT(google-runtime-int): hiredis's
  RedisReply* const reply = MakeReply(task, RedisReply::Kind::kInteger);
  reply->integer = value;
  return reply;
}

void* MakeNull(const redisReadTask* task) { return MakeReply(task, RedisReply::Kind::kNull); }

void FreeReply(void* reply) { delete static_cast<RedisReply*>(reply); }

redisReplyObjectFunctions* Callbacks() {
  static redisReplyObjectFunctions callbacks = [] {
    redisReplyObjectFunctions made = {};
    made.createString = MakeText;
    made.createArray = MakeList;
    made.createInteger = MakeInteger;
    made.createNil = MakeNull;
    made.freeObject = FreeReply;
    return made;
  }();
  return &callbacks;
}

std::string Encode(absl::Span<const RedisCommand> commands) {
  constexpr size_t kHead = 24;  // of a word or a command: a letter, a number and two line ends
  size_t size = 0;
  for (const RedisCommand& command : commands) {
    size += kHead;
    for (const absl::string_view word : command) size += kHead + word.size();
  }
  std::string bytes;
  bytes.reserve(size);
  for (const RedisCommand& command : commands) {
    absl::StrAppend(&bytes, "*", command.size(), "\r\n");
    for (const absl::string_view word : command) {
      absl::StrAppend(&bytes, "$", word.size(), "\r\n");
      bytes.append(word.data(), word.size());
      bytes.append("\r\n");
    }
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<RedisAddress>> ResolveAddress(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError(absl::StrCat(host_port, ": no port"));
  std::string host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), host_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
  std::vector<RedisAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    RedisAddress& address = addresses.emplace_back();
    address.bytes = one->ai_addrlen;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<std::vector<RedisAddress>> ResolveUnless(const std::atomic<bool>& stop,
                                                        const AddressResolver& resolve,
                                                        const std::string& host_port) {
  using Answer = absl::StatusOr<std::vector<RedisAddress>>;
  const auto answer = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answered = answer->get_future();
  try {
    std::thread([answer, resolve, host_port] { answer->set_value(resolve(host_port)); }).detach();
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("no thread for the resolver: ", error.what()));
  }
  while (answered.wait_for(absl::ToChronoMilliseconds(kStopInterval)) != std::future_status::ready) {
    if (stop) return absl::CancelledError("it is not in use any more");
  }
  return answered.get();
}

struct RedisConnection::Reader {
  redisReader* reader = nullptr;
  size_t elements = 0;  // of the reply that is being read
  std::vector<char> buffer = std::vector<char>(kReceiveBytes);

  Reader() { Renew(); }
  ~Reader() { redisReaderFree(reader); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Gives back the memory of what was read.
  void Renew() {
    if (reader != nullptr) redisReaderFree(reader);
    reader = redisReaderCreateWithFunctions(Callbacks());
    reader->privdata = &elements;
  }
};

RedisConnection::RedisConnection(int socket) : socket_(socket), reader_(std::make_unique<Reader>()) {}

RedisConnection::~RedisConnection() { close(socket_); }

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
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

absl::StatusOr<size_t> RedisConnection::Send(absl::string_view* bytes) const {
  const ssize_t sent = send(socket_, bytes->data(), bytes->size(), MSG_NOSIGNAL);
  if (sent >= 0) {
    bytes->remove_prefix(static_cast<size_t>(sent));
    return static_cast<size_t>(sent);
  }
  if (errno == EAGAIN || errno == EINTR) return 0;
  return Failed("send", errno);
}

absl::StatusOr<size_t> RedisConnection::Receive() {
  const ssize_t got = recv(socket_, reader_->buffer.data(), reader_->buffer.size(), 0);
  if (got == 0) return absl::UnavailableError("the remote has closed the connection");
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return 0;
    return Failed("recv", errno);
  }
  if (redisReaderFeed(reader_->reader, reader_->buffer.data(), static_cast<size_t>(got)) != REDIS_OK ||
      reader_->reader->len > kMaxPendingBytes) {
    return absl::UnavailableError("a reply that is too large");
  }
  return static_cast<size_t>(got);
}

absl::Status RedisConnection::TakeReplies(size_t most, std::vector<RedisReply>* replies) {
  while (replies->size() < most) {
    void* raw = nullptr;
    if (redisReaderGetReply(reader_->reader, &raw) != REDIS_OK) {
      return absl::UnavailableError(absl::StrCat("not Redis's protocol: ", reader_->reader->errstr));
    }
    if (raw == nullptr) return absl::OkStatus();
    const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(raw));
    replies->push_back(std::move(*reply));
    reader_->elements = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Call(absl::Span<const RedisCommand> commands,
                                                              const Limits& limits) {
  std::string encoded = Encode(commands);
  absl::string_view unsent = encoded;
  std::vector<RedisReply> replies;
  const absl::Time begun = MonotonicNow();
  absl::Time silent_since = begun;
  size_t moved_bytes = 0;
  size_t received_bytes = 0;
  while (replies.size() < commands.size()) {
    size_t sent = 0;
    if (!unsent.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(sent, Send(&unsent));
      if (unsent.empty()) std::string().swap(encoded);  // a value may be large
    }
    ALUDEL_ASSIGN_OR_RETURN(const size_t received, Receive());
    if (received > 0) ALUDEL_RETURN_IF_ERROR(TakeReplies(commands.size(), &replies));
    if (received > 0 && received_bytes == 0 && limits.on_bytes) limits.on_bytes();
    moved_bytes += sent + received;
    received_bytes += received;
    if (replies.size() == commands.size()) break;
    const absl::Time now = MonotonicNow();
    if (sent + received > 0) {
      silent_since = now;
      if (now >= limits.until) return absl::DeadlineExceededError("no answer in time");
      if (limits.stop != nullptr && limits.stop->load())
        return absl::CancelledError("it is not in use any more");
      continue;
    }
    const double want = limits.least_rate * absl::ToDoubleSeconds(now - begun - limits.silence);
    if (static_cast<double>(moved_bytes) < want) return absl::DeadlineExceededError("it is too slow");
    ALUDEL_RETURN_IF_ERROR(Wait(!unsent.empty(), silent_since, limits));
  }
  if (received_bytes > kReceiveBytes) reader_->Renew();
  return replies;
}

absl::StatusOr<RedisReply> RedisConnection::Call(const RedisCommand& command, const Limits& limits) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<RedisReply> replies, Call(absl::MakeConstSpan(&command, 1), limits));
  return std::move(replies.front());
}

}  // namespace aludel
