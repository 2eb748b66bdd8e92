#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/commands.h"
#include "server/bench/link_bounds.h"
#include "transport/monotonic_clock.h"
#include "transport/open_transport.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench link measures the data plane between two processes of this machine: messages of one size from
registered memory to registered memory, a bounded number under way. Beside each transport stands what it is
compared with in the same run: bytes through a plain socket, and ucx_perftest where it is installed.

  aludel-bench link --size 1048576
  aludel-bench link --kinds ucx --transports posix,cma,tcp --devices "")";

struct LinkOptions {
  int64_t size = 1 << 20;
  int64_t window = 16;
  int64_t places = 32;
  int64_t milliseconds = 3000;
  std::string kinds = "tcp,tls,ucx";
  TransportOptions transport{.ucx_transports = "tcp", .ucx_devices = "lo"};
};

// Puts every payload into one of `places` and counts what was received.
class Sink : public MessageHandler {
 public:
  Sink(size_t payload_bytes, size_t places) : payload_bytes_(payload_bytes), places_(places) {}
  absl::Status Open(Transport* transport) {
    ALUDEL_ASSIGN_OR_RETURN(region_, transport->Allocate(std::max<size_t>(payload_bytes_ * places_, 64)));
    return absl::OkStatus();
  }
  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t>, size_t payload_bytes) override {
    if (payload_bytes == 0 || payload_bytes > payload_bytes_ || region_ == nullptr) return {};
    return region_->bytes().subspan((id % places_) * payload_bytes_, payload_bytes);
  }
  void OnPayload(MessageId, absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    received_ += status.ok() ? 1 : 0;
  }
  // False where it takes longer.
  bool AwaitReceived(int64_t count, absl::Duration limit) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return received_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), limit);
  }
  void Close() { region_.reset(); }

 private:
  const size_t payload_bytes_;
  const size_t places_;
  std::unique_ptr<MemoryRegion> region_;
  absl::Mutex mutex_;
  int64_t received_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The other process: reports its address, then echoes each number of messages that it reads once that many
// were received.
int Receive(const LinkOptions& options, int commands, int answers) {
  Sink sink(options.size, options.places);
  auto transport = OpenTransport(options.transport, &sink);
  if (!transport.ok() || !sink.Open(transport->get()).ok()) return 1;
  const std::string address = (*transport)->address();
  const auto bytes = static_cast<uint32_t>(address.size());
  if (write(answers, &bytes, sizeof(bytes)) != sizeof(bytes)) return 1;
  if (write(answers, address.data(), address.size()) != static_cast<ssize_t>(address.size())) return 1;
  for (int64_t count = 0; read(commands, &count, sizeof(count)) == sizeof(count);) {
    const char received = sink.AwaitReceived(count, absl::Seconds(60)) ? 1 : 0;
    if (write(answers, &received, 1) != 1) return 1;
  }
  sink.Close();
  return 0;
}

// This process' side: keeps `window` messages under way.
class Source {
 public:
  Source(const LinkOptions& options, int commands, int answers)
      : options_(options), commands_(commands), answers_(answers), nothing_(1, 1) {}

  absl::Status Open() {
    uint32_t bytes = 0;
    if (read(answers_, &bytes, sizeof(bytes)) != sizeof(bytes)) return Gone();
    std::string address(bytes, '\0');
    if (read(answers_, address.data(), bytes) != static_cast<ssize_t>(bytes)) return Gone();
    ALUDEL_ASSIGN_OR_RETURN(transport_, OpenTransport(options_.transport, &nothing_));
    ALUDEL_ASSIGN_OR_RETURN(region_, transport_->Allocate(options_.size));
    std::fill(region_->bytes().begin(), region_->bytes().end(), 0x5a);  // pages that are there
    ALUDEL_ASSIGN_OR_RETURN(channel_, transport_->Connect(address, absl::Seconds(10)));
    return absl::OkStatus();
  }

  // Bytes per second of payloads, until the last was received.
  absl::StatusOr<double> Measure(absl::Duration duration) {
    const absl::Time begin = MonotonicNow();
    int64_t before = 0;
    {
      absl::MutexLock lock(&mutex_);
      stop_at_ = begin + duration;
      under_way_ = options_.window;
      before = sent_;
    }
    for (int64_t i = 0; i < options_.window; ++i) SendNext();
    ALUDEL_ASSIGN_OR_RETURN(const int64_t sent, AwaitReceived());
    return static_cast<double>((sent - before) * options_.size) /
           absl::ToDoubleSeconds(MonotonicNow() - begin);
  }

  const std::string lanes() const { return channel_->lanes(); }

 private:
  static absl::Status Gone() { return absl::UnavailableError("the receiving process has ended"); }
  // Each message that has left is followed by the next one, from the transport's own thread: what is measured
  // is not how fast two threads wake each other.
  void SendNext() {
    channel_->Send({}, region_->bytes().first(options_.size), [this](const absl::Status& status) {
      bool more = false;
      {
        absl::MutexLock lock(&mutex_);
        if (failed_.ok()) failed_ = status;
        ++sent_;
        more = failed_.ok() && MonotonicNow() < stop_at_;
        if (!more) --under_way_;
      }
      if (more) SendNext();
    });
  }
  // How many messages have been sent since the beginning, all of which were received.
  absl::StatusOr<int64_t> AwaitReceived() {
    int64_t sent = 0;
    {
      absl::MutexLock lock(&mutex_);
      const auto nothing_under_way = [this]()
                                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; };
      mutex_.Await(absl::Condition(&nothing_under_way));
      if (!failed_.ok()) return failed_;
      sent = sent_;
    }
    char received = 0;
    if (write(commands_, &sent, sizeof(sent)) != sizeof(sent) || read(answers_, &received, 1) != 1)
      return Gone();
    if (received != 1) return absl::DeadlineExceededError("messages have not arrived within a minute");
    return sent;
  }

  const LinkOptions options_;
  const int commands_;
  const int answers_;
  Sink nothing_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<Channel> channel_;
  absl::Mutex mutex_;
  absl::Time stop_at_ ABSL_GUARDED_BY(mutex_);
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

absl::Status MeasureLink(const LinkOptions& options, int commands, int answers) {
  Source source(options, commands, answers);
  ALUDEL_RETURN_IF_ERROR(source.Open());
  ALUDEL_RETURN_IF_ERROR(source.Measure(absl::Milliseconds(options.milliseconds / 4)).status());  // warm
  ALUDEL_ASSIGN_OR_RETURN(const double rate, source.Measure(absl::Milliseconds(options.milliseconds)));
  absl::PrintF("%s: %d bytes a message, %d under way: %.1f MB/s\n", source.lanes(), options.size,
               options.window, rate / 1e6);
  return absl::OkStatus();
}

absl::Status MeasureKind(LinkOptions options, const std::string& kind) {
  std::optional<ThrowawayCertificate> certificate;
  options.transport.kind = kind == "ucx" ? "ucx" : "tcp";
  if (kind == "tls") {
    ALUDEL_ASSIGN_OR_RETURN(ThrowawayCertificate made, ThrowawayCertificate::Make());
    certificate.emplace(std::move(made));
    options.transport.tls = {.certificate_file = certificate->certificate(),
                             .key_file = certificate->key(),
                             .ca_file = certificate->certificate()};
  }
  int commands[2];
  int answers[2];
  if (pipe(commands) != 0 || pipe(answers) != 0) return absl::InternalError("no pipe");
  const pid_t child = fork();  // before there is a transport with threads
  if (child == 0) {
    close(commands[1]);
    close(answers[0]);
    _exit(Receive(options, commands[0], answers[1]));
  }
  close(commands[0]);
  close(answers[1]);
  const absl::Status status = MeasureLink(options, commands[1], answers[0]);
  close(commands[1]);
  waitpid(child, nullptr, 0);
  return status;
}

// In a process of its own: none forks that has threads.
absl::Status MeasureApart(const LinkOptions& options, const std::string& kind) {
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = MeasureKind(options, kind);
    if (!status.ok()) absl::FPrintF(stderr, "%s: %s\n", kind, status.ToString());
    std::fflush(nullptr);
    _exit(status.ok() ? 0 : 1);
  }
  int result = 0;
  waitpid(child, &result, 0);
  return result == 0 ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat("link: ", kind, " could not be measured"));
}

void Print(const char* what, const absl::StatusOr<double>& rate) {
  if (rate.ok()) {
    absl::PrintF("%s: %.1f MB/s\n", what, *rate / 1e6);
  } else {
    absl::PrintF("%s: %s\n", what, rate.status().message());
  }
  std::fflush(stdout);  // before the next fork
}

}  // namespace

absl::Status LinkCommand(int argc, char** argv) {
  LinkOptions options;
  FlagSet flags(kUsage);
  flags.Add("size", "BYTES", &options.size, "of each message");
  flags.Add("window", "COUNT", &options.window, "messages under way");
  flags.Add("places", "COUNT", &options.places, "where payloads arrive, in turn; 1: each over the last");
  flags.Add("milliseconds", "MS", &options.milliseconds, "of sending, after a warm-up of a quarter of it");
  flags.Add("kinds", "LIST", &options.kinds, "what to measure: tcp, tls (tcp with certificates), ucx");
  flags.Add("transports", "LIST", &options.transport.ucx_transports, "UCX transports");
  flags.Add("devices", "LIST", &options.transport.ucx_devices, "UCX devices");
  bool no_bounds = false;
  flags.Add("no-bounds", &no_bounds, "only the transports, not what they are compared with");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (options.size < 1 || options.size > 1 << 30 || options.window < 1 || options.window > 1024 ||
      options.places < 1 || options.places > 1024) {
    return absl::InvalidArgumentError("--size must be 1 to 2^30, --window and --places 1 to 1024");
  }
  const std::vector<std::string> kinds = absl::StrSplit(options.kinds, ',', absl::SkipEmpty());
  for (const std::string& kind : kinds) {
    if (kind != "tcp" && kind != "tls" && kind != "ucx") {
      return absl::InvalidArgumentError(absl::StrCat("--kinds: \"", kind, "\", want tcp, tls or ucx"));
    }
  }
  if (!no_bounds) {
    Print("bound: a plain socket of loopback",
          PlainSocketRate(options.size, absl::Milliseconds(options.milliseconds)));
  }
  for (const std::string& kind : kinds) {
    ALUDEL_RETURN_IF_ERROR(MeasureApart(options, kind));
    if (no_bounds || kind != "ucx") continue;
    Print("bound: ucx_perftest -t ucp_am_bw",
          UcxPerftestRate(options.size, options.window, options.transport.ucx_transports,
                          options.transport.ucx_devices));
  }
  return absl::OkStatus();
}

}  // namespace aludel
