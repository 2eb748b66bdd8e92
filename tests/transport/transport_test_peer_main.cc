// The other process of transport_process_test.
//   transport_test_peer receive KIND CERTIFICATES COUNT     writes its address in hex, checks every payload
//   until its
//                                                           standard input ends, then writes "good N bad M"
//   transport_test_peer send KIND CERTIFICATES HEXADDRESS   connects and sends without end
// KIND and CERTIFICATES are as in peer_kind.h.
// A message of header "S" carries Pattern(size, S).

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "tests/transport/peer_kind.h"
#include "tests/transport/recording_handler.h"
#include "transport/open_transport.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

class VerifyingHandler : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header,
                               size_t payload_bytes) override {
    absl::MutexLock lock(&mutex_);
    Expected& expected = expected_[id];
    expected.seed = std::string(header.begin(), header.end());
    expected.data.assign(payload_bytes, 0);
    return absl::MakeSpan(expected.data);
  }

  void OnPayload(MessageId id, absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    const Expected& expected = expected_[id];
    uint64_t seed = 0;
    const bool good = status.ok() && absl::SimpleAtoi(expected.seed, &seed) &&
                      expected.data == Pattern(expected.data.size(), seed);
    ++(good ? good_ : bad_);
    expected_.erase(id);
  }

  void WaitFor(int count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, count]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return good_ + bad_ >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20));
  }

  void Print() {
    absl::MutexLock lock(&mutex_);
    std::printf("good %d bad %d\n", good_, bad_);
  }

 private:
  struct Expected {
    std::string seed;
    std::vector<uint8_t> data;
  };
  absl::Mutex mutex_;
  std::unordered_map<MessageId, Expected> expected_ ABSL_GUARDED_BY(mutex_);
  int good_ ABSL_GUARDED_BY(mutex_) = 0;
  int bad_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::unique_ptr<Transport> OpenOrExit(const TransportOptions& options, MessageHandler* handler) {
  auto transport = OpenTransport(options, handler);
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(transport);
}

int Receive(const TransportOptions& options, int count) {
  VerifyingHandler handler;
  std::unique_ptr<Transport> transport = OpenOrExit(options, &handler);
  std::printf("%s\n", absl::BytesToHexString(transport->address()).c_str());
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  handler.WaitFor(count);
  transport.reset();
  handler.Print();
  return 0;
}

int SendWithoutEnd(const TransportOptions& options, const char* address) {
  RecordingHandler handler;
  std::unique_ptr<Transport> transport = OpenOrExit(options, &handler);
  auto channel = transport->Connect(absl::HexStringToBytes(address), absl::Seconds(10));
  if (!channel.ok()) {
    std::fprintf(stderr, "%s\n", channel.status().ToString().c_str());
    return 1;
  }
  const std::vector<uint8_t> data = Pattern(4 << 20, 1);
  absl::Mutex mutex;
  int unfinished = 0;
  const auto below_limit = [&unfinished] { return unfinished < 32; };
  while ((*channel)->healthy()) {
    {
      absl::MutexLock lock(&mutex, absl::Condition(&below_limit));
      ++unfinished;
    }
    (*channel)->Send(AsBytes("1"), data, [&](absl::Status) {
      absl::MutexLock lock(&mutex);
      --unfinished;
    });
  }
  channel->reset();
  return 0;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc == 5) {
    const aludel::TransportOptions options = aludel::OptionsOf(argv[2], argv[3]);
    if (mode == "receive") return aludel::Receive(options, std::atoi(argv[4]));
    if (mode == "send") return aludel::SendWithoutEnd(options, argv[4]);
  }
  std::fprintf(stderr, "usage: %s receive KIND CERTIFICATES COUNT | send KIND CERTIFICATES HEXADDRESS\n",
               argv[0]);
  return 2;
}
