#include "server/prefill/connection_cache.h"

#include <atomic>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

class OpenChannel : public Channel {
 public:
  void Send(absl::Span<const uint8_t>, absl::Span<const uint8_t>,
            std::function<void(absl::Status)> done) override {
    done(absl::OkStatus());
  }
  bool healthy() const override { return true; }
  std::string lanes() const override { return "none"; }
};

// Peers of the network 10.0.0.0/8 never answer: who connects to them waits until the test lets go.
class HalfSilentNetwork : public Transport {
 public:
  std::string address() const override { return ""; }
  absl::StatusOr<std::unique_ptr<Channel>> Connect(absl::string_view address, absl::Duration) override {
    const EndpointAddress to = ParseAddress(address, AddressKind::kTcp).value();
    ++connects_;
    if (to.sockets[0].ip[0] != 10) return std::make_unique<OpenChannel>();
    ++silent_;
    let_go_.WaitForNotification();
    --silent_;
    return absl::DeadlineExceededError("no answer");
  }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> Allocate(size_t) override {
    return absl::UnimplementedError("not here");
  }
  TransportStats stats() const override { return {}; }
  absl::Duration ProgressSilence() override { return absl::ZeroDuration(); }

  std::atomic<int> connects_ = 0;
  std::atomic<int> silent_ = 0;  // connects that wait now
  absl::Notification let_go_;
};

std::string Address(uint8_t network, uint8_t host, uint16_t port) {
  SocketEntry socket = {.family = 4, .reserved = 0, .port = port, .ip = {network, 0, 0, host}};
  return EncodeAddress({.kind = AddressKind::kTcp, .endpoint_id = 7, .sockets = {socket}});
}

class ConnectionCacheTest : public ::testing::Test {
 protected:
  ~ConnectionCacheTest() override {
    if (!network_.let_go_.HasBeenNotified()) network_.let_go_.Notify();
  }
  void GetSilent(uint8_t host, uint16_t port) {
    ++asked_;
    cache_->Get(Address(10, host, port), MonotonicNow() + kPatience, [this](const auto& made) {
      EXPECT_FALSE(made.ok());
      ++failed_;
    });
  }
  // Whether an address that answers is connected while the test waits.
  bool Connects(uint8_t host) {
    const auto done = std::make_shared<absl::Notification>();
    cache_->Get(Address(192, host, 1), MonotonicNow() + kPatience, [done](const auto& made) {
      EXPECT_TRUE(made.ok());
      done->Notify();
    });
    return done->WaitForNotificationWithTimeout(absl::Seconds(30));
  }

  HalfSilentNetwork network_;
  int asked_ = 0;
  std::atomic<int> failed_ = 0;
  std::unique_ptr<ConnectionCache> cache_ =
      std::make_unique<ConnectionCache>(&network_, AddressKind::kTcp, 64, absl::Seconds(2));
};

TEST_F(ConnectionCacheTest, ConnectsToOthersWhileAHostDoesNotAnswer) {
  for (uint16_t port = 1; port <= 100; ++port) GetSilent(1, port);
  EXPECT_TRUE(Connects(1));
  EXPECT_TRUE(Connects(2));
  EXPECT_LE(network_.silent_, ConnectionCache::kThreadsPerHost);
  EXPECT_EQ(failed_, 0);
  network_.let_go_.Notify();
  cache_.reset();
  EXPECT_EQ(failed_, asked_);
}

TEST_F(ConnectionCacheTest, TriesAnAddressOnceForAllWhoWaitForIt) {
  for (int i = 0; i < 50; ++i) GetSilent(1, 1);
  EXPECT_TRUE(Connects(1));
  network_.let_go_.Notify();
  cache_.reset();
  EXPECT_EQ(failed_, asked_);
  EXPECT_EQ(network_.connects_, 2);
}

TEST_F(ConnectionCacheTest, BoundsHowManyWaitForAHost) {
  for (int i = 0; i < 300; ++i) GetSilent(1, 1);
  EXPECT_GE(failed_, 40);
  EXPECT_TRUE(Connects(1));
}

TEST_F(ConnectionCacheTest, IsSilentWhenConnectingTakesLongerThanItMay) {
  EXPECT_EQ(cache_->Silence(), absl::ZeroDuration());
  cache_ = std::make_unique<ConnectionCache>(&network_, AddressKind::kTcp, 64, absl::Milliseconds(1));
  GetSilent(1, 1);
  const absl::Time until = MonotonicNow() + kPatience;
  while (cache_->Silence() < absl::Milliseconds(20) && MonotonicNow() < until)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(cache_->Silence(), absl::Milliseconds(20));
  network_.let_go_.Notify();
}

}  // namespace
}  // namespace aludel
