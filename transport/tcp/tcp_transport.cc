#include "transport/tcp/tcp_transport.h"

#include <pthread.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "transport/heap_region.h"
#include "transport/monotonic_clock.h"
#include "transport/transport_options.h"
#include "transport/wire.h"

namespace aludel {
namespace {

// Ends the poller's sleep when commands have come; the progress thread takes them before it sleeps again.
class Wakeup : public Polled {
 public:
  void OnReady() override {}
};

}  // namespace

// The callers' side of a TcpSender. Thread-safe; destroyed by any thread but the progress thread, which would
// wait for itself.
class TcpChannel : public Channel {
 public:
  TcpChannel(TcpTransport* transport, TcpSender* sender)
      : transport_(transport), sender_(sender), lanes_(sender->lanes()), state_(sender->state()) {}

  ~TcpChannel() override {
    absl::Notification closed;
    transport_->commands_->Post([this, &closed] {
      transport_->node_->CloseSender(sender_);
      closed.Notify();
    });
    closed.WaitForNotification();
  }

  void Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
            std::function<void(absl::Status)> done) override {
    const auto refuse = [&](absl::Status status) {
      transport_->counters_.CountSend(status, payload.size());
      done(std::move(status));
    };
    if (absl::Status status = Reserve(header.size(), payload.size()); !status.ok())
      return refuse(std::move(status));
    TcpSend send{.head = EncodeTcpHead(TcpFrameType::kData, 0, header, payload.size()),
                 .payload = payload,
                 .done = done,
                 .due = {}};
    CommandQueue::Command command = [sender = sender_, send = std::move(send)]() mutable {
      sender->Queue(std::move(send));
    };
    if (transport_->commands_->TryPost(command)) return;
    state_->unfinished.fetch_sub(1, std::memory_order_relaxed);
    refuse(absl::ResourceExhaustedError("send: the command queue of the transport is full"));
  }

  uint64_t written() const override { return state_->written; }
  bool healthy() const override { return state_->healthy; }
  std::string lanes() const override { return lanes_; }

 private:
  // Takes a place among the unfinished sends, or says why there is none.
  absl::Status Reserve(size_t header_bytes, size_t payload_bytes) {
    if (header_bytes > kMaxHeaderBytes || payload_bytes > kMaxTcpPayloadBytes) {
      return absl::InvalidArgumentError(absl::StrCat("send: header has ", header_bytes, " bytes and payload ",
                                                     payload_bytes, ", want at most ", kMaxHeaderBytes,
                                                     " and ", kMaxTcpPayloadBytes));
    }
    if (!state_->healthy) return absl::UnavailableError("send: the peer is gone");
    if (state_->unfinished.fetch_add(1, std::memory_order_relaxed) >= transport_->max_inflight_sends_) {
      state_->unfinished.fetch_sub(1, std::memory_order_relaxed);
      return absl::ResourceExhaustedError(
          absl::StrCat("send: ", transport_->max_inflight_sends_, " sends of this channel are unfinished"));
    }
    return absl::OkStatus();
  }

  TcpTransport* const transport_;
  TcpSender* const sender_;  // touched by the progress thread only
  const std::string lanes_;
  const std::shared_ptr<TcpChannelState> state_;
};

absl::StatusOr<std::unique_ptr<Transport>> TcpTransport::Open(const TransportOptions& options,
                                                              MessageHandler* handler) {
  auto transport = std::unique_ptr<TcpTransport>(new TcpTransport(options));
  absl::StatusOr<std::unique_ptr<TcpNode>> node = TcpNode::Open(options, handler, &transport->counters_);
  if (!node.ok()) return node.status();
  transport->node_ = *std::move(node);
  if (options.accepts) transport->address_ = EncodeAddress(transport->node_->address());
  absl::StatusOr<std::unique_ptr<CommandQueue>> commands = CommandQueue::Open();
  if (!commands.ok()) return commands.status();
  transport->commands_ = *std::move(commands);
  transport->thread_ = std::thread([raw = transport.get()] { raw->Run(); });
  return transport;
}

TcpTransport::~TcpTransport() {
  if (!thread_.joinable()) return;
  commands_->Post([this] { stopping_ = true; });
  thread_.join();
}

void TcpTransport::Run() {
  pthread_setname_np(pthread_self(), "aludel-tcp");  // for those who look at a hanging process
  // OpenSSL writes to sockets whose peer may be gone without asking for MSG_NOSIGNAL.
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
  Wakeup wakeup;
  node_->poller().Watch(commands_->event_fd(), &wakeup, /*writable=*/false);
  while (true) {
    for (CommandQueue::Command& command : commands_->TakeAll()) command();
    if (stopping_) return node_->Shutdown();
    node_->poller().Wait(node_->Advance(MonotonicNow()));
  }
}

absl::Duration TcpTransport::ProgressSilence() {
  const int64_t now = absl::ToInt64Nanoseconds(MonotonicNow() - absl::UnixEpoch());
  if (asked_.exchange(true)) return absl::Nanoseconds(now - asked_at_ns_.load());
  asked_at_ns_ = now;
  commands_->Post([this] { asked_ = false; });
  return absl::ZeroDuration();
}

absl::StatusOr<std::unique_ptr<Channel>> TcpTransport::Connect(absl::string_view address,
                                                               absl::Duration timeout) {
  absl::StatusOr<EndpointAddress> peer = ParseAddress(address, AddressKind::kTcp);
  if (!peer.ok()) return peer.status();
  absl::Notification finished;
  absl::StatusOr<std::unique_ptr<Channel>> channel;
  const absl::Time deadline = MonotonicNow() + timeout;
  commands_->Post([&, this] {
    node_->Connect(*std::move(peer), deadline, [&, this](absl::StatusOr<TcpSender*> sender) {
      if (sender.ok()) {
        channel = std::make_unique<TcpChannel>(this, *sender);
      } else {
        channel = sender.status();
      }
      finished.Notify();
    });
  });
  // The progress thread keeps the deadline.
  finished.WaitForNotification();
  return channel;
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> TcpTransport::Allocate(size_t bytes) {
  return AllocateHeapRegion(bytes);
}

}  // namespace aludel
