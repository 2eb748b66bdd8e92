#include "tests/bench/gateway_meter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/gateway/gateway.h"
#include "server/gateway/routing/router.h"
#include "spdlog/sinks/null_sink.h"
#include "spdlog/spdlog.h"
#include "tests/bench/counted_memory.h"
#include "tests/server/gateway/paced_decode.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

constexpr char kKey[] = "the-key-of-the-fuzzer";
constexpr absl::Duration kAnswerLimit = absl::Seconds(30);
// Nothing runs any more where all threads together take less than this share of a core for so long.
constexpr absl::Duration kQuiet = absl::Microseconds(500);
constexpr double kQuietShare = 0.3;

double OthersCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - ThreadCpuSeconds();
}

// A connection that writes all it has to and reads to the end, both as far as the other side lets it.
class Connection {
 public:
  explicit Connection(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The first bytes of what came; the error goes to `fault`.
  std::string Exchange(absl::string_view bytes, size_t* received, std::string* fault) {
    if (!connected_) *fault = "no connection";
    const absl::Time deadline = absl::Now() + kAnswerLimit;
    std::string head;
    bool writes = !bytes.empty();
    char buffer[65536];
    while (fault->empty()) {
      pollfd polled = {fd_, static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0};
      if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now()))) <= 0) {
        *fault = absl::StrCat("no end within ", absl::FormatDuration(kAnswerLimit));
        break;
      }
      if ((polled.revents & POLLOUT) != 0 && writes) {
        const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
        // Refused while it was sending: what was answered may still be there.
        writes = !bytes.empty() && (sent > 0 || errno == EAGAIN);
      }
      if ((polled.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
      if (got > 0) *received += static_cast<size_t>(got);
      if (got > 0 && head.size() < 16) head.append(buffer, static_cast<size_t>(got));
    }
    return head.substr(0, 16);
  }

 private:
  const int fd_;
  bool connected_ = false;
};

class Meter : public GatewayMeter {
 public:
  explicit Meter(const ServedModels* models)
      : decode_({.tokenizer_fingerprint = models->Find("chat")->tokenizer->fingerprint(),
                 .max_context = 4096,
                 .interval = std::chrono::milliseconds(1)}),
        router_({{.expectation = {.model = "chat",
                                  .tokenizer_fingerprint = models->Find("chat")->tokenizer->fingerprint()},
                  .decode_targets = {decode_.target()}}},
                {.probe_interval = absl::Seconds(5), .probe_timeout = absl::Seconds(5)}, &metrics_),
        gateway_({}, &access_, models, &router_, &metrics_) {
    access_.SetKeys({{.name = "fuzzer", .sha256 = HashApiKey(kKey), .limits = {}}});
  }

  absl::Status Listen() {
    // The limits of GatewayConfig's defaults.
    HttpServerOptions options;
    options.limits = {.max_header_bytes = 16 << 10, .max_body_bytes = 4 << 20};
    // A changed request may be one that is not whole: it need not be waited for long.
    options.header_timeout = options.body_timeout = absl::Seconds(2);
    options.idle_timeout = absl::Milliseconds(300);
    auto server = gateway_.Listen(options);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    const absl::Time limit = absl::Now() + kAnswerLimit;
    while (!gateway_.CheckReady().ok()) {
      if (absl::Now() > limit) return gateway_.CheckReady();
      absl::SleepFor(absl::Milliseconds(5));
    }
    return absl::OkStatus();
  }

  WholeCost Measure(const WholeRequest& request) override {
    const std::string bytes = request.Bytes(kKey);
    WholeCost cost{.bytes = bytes.size()};
    const int64_t live = LiveBytes();
    RestartPeak();
    const double before = OthersCpuSeconds();
    {
      Connection connection(server_->port());
      const std::string head = connection.Exchange(bytes, &cost.answer_bytes, &cost.fault);
      if (absl::StartsWith(head, "HTTP/1.1 "))
        static_cast<void>(absl::SimpleAtoi(head.substr(9, 3), &cost.status));
    }
    if (!AwaitQuiet() && cost.fault.empty()) cost.fault = "goes on after its client has gone";
    cost.seconds = OthersCpuSeconds() - before;
    cost.peak_bytes = PeakBytes() - live;
    return cost;
  }

 private:
  // False where something still runs.
  bool AwaitQuiet() const {
    const absl::Time limit = absl::Now() + kAnswerLimit;
    for (double last = OthersCpuSeconds(); absl::Now() < limit;) {
      const absl::Time began = absl::Now();
      absl::SleepFor(kQuiet);
      const double now = OthersCpuSeconds();
      const bool quiet = now - last < kQuietShare * absl::ToDoubleSeconds(absl::Now() - began);
      last = now;
      if (quiet && server_->open_connections() == 0) return true;
    }
    return false;
  }

  PacedDecode decode_;
  Access access_{KeyLimits{}};
  Metrics metrics_;
  Router router_;
  Gateway gateway_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GatewayMeter>> GatewayMeter::Open(const ServedModels* models) {
  spdlog::set_default_logger(spdlog::null_logger_mt("none"));  // lines are made, and not written
  auto meter = std::make_unique<Meter>(models);
  if (const absl::Status status = meter->Listen(); !status.ok()) return status;
  return meter;
}

}  // namespace aludel
