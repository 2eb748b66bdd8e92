// A log's events over real gRPC.
#include "server/rpc/cache_events/cache_event_service.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_events/cache_mirror.h"

namespace aludel {
namespace {

class CacheEventServiceTest : public ::testing::Test {
 protected:
  CacheEventServiceTest() {
    log_.OnChange([this] { changed_ = true; });
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.AddListeningPort(absl::StrCat("unix:", socket_), grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::CacheEvents::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials()));
  }
  ~CacheEventServiceTest() override {
    service_.End();
    server_->Shutdown();
    unlink(socket_.c_str());
  }

  void Add(uint64_t key, bool removed = false) {
    log_.Add({key, removed ? KeyChange::kRemoved : uint8_t{0}});
    if (changed_) service_.Flush();
    changed_ = false;
  }

  // One call, read by hand.
  struct Watch {
    explicit Watch(v1::CacheEvents::Stub* stub) : reader(stub->Watch(&context, {})) {}
    ~Watch() { context.TryCancel(); }
    bool Read() {
      v1::CacheEvent event;
      if (!reader->Read(&event)) return false;
      ++events;
      bytes += event.ByteSizeLong();
      const CacheMirror::Heard heard = mirror.Hear(event);
      EXPECT_NE(heard, CacheMirror::Heard::kBroken);
      if (heard == CacheMirror::Heard::kSnapshot) keys.clear();
      for (const KeyChange& change : mirror.changes()) {
        if (change.removed()) {
          keys.erase(change.key);
        } else {
          keys.insert(change.key);
        }
      }
      return true;
    }
    void ReadUntil(uint64_t key) {
      while (!keys.contains(key)) ASSERT_TRUE(Read());
    }

    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::CacheEvent>> reader;
    CacheMirror mirror{1 << 20};
    std::set<uint64_t> keys;
    size_t events = 0, bytes = 0;
  };

  const std::string socket_ = absl::StrCat("/tmp/cache_event_service_test.", getpid());
  absl::Status allowed_;
  KeyLog log_{{.epoch = 7, .max_changes = 1000}};
  bool changed_ = false;
  CacheEventService service_{&log_, [this](const grpc::CallbackServerContext&) { return allowed_; }};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CacheEvents::Stub> stub_;
};

TEST_F(CacheEventServiceTest, TellsWhatIsThereAndWhatChanges) {
  for (uint64_t key = 0; key < 20'000; ++key) Add(key);
  Watch watch(stub_.get());
  while (!watch.mirror.current()) ASSERT_TRUE(watch.Read());
  EXPECT_EQ(watch.keys.size(), 20'000u);
  EXPECT_EQ(watch.events, 3u);  // pieces
  Add(3, /*removed=*/true);
  Add(100'000);
  watch.ReadUntil(100'000);
  EXPECT_EQ(watch.keys.size(), 20'000u);
  EXPECT_FALSE(watch.keys.contains(3));
}

TEST_F(CacheEventServiceTest, AReaderThatDoesNotReadCostsNothingAndHasASnapshotLater) {
  Watch slow(stub_.get());
  ASSERT_TRUE(slow.Read());
  // 27 MB of changes, of which it takes none.
  for (uint64_t key = 0; key < 1'500'000; ++key) {
    Add(key);
    if (key >= 100) Add(key - 100, /*removed=*/true);
  }
  slow.ReadUntil(1'499'999);
  EXPECT_EQ(slow.keys.size(), 100u);
  // What gRPC and the sockets had taken before they stopped, some megabytes, and one snapshot.
  EXPECT_LT(slow.bytes, 10u << 20);
}

TEST_F(CacheEventServiceTest, OthersDoNotWaitForIt) {
  Watch slow(stub_.get()), other(stub_.get());
  ASSERT_TRUE(slow.Read());
  for (uint64_t key = 0; key < 200'000; ++key) Add(key);
  other.ReadUntil(199'999);
  EXPECT_EQ(other.keys.size(), 200'000u);
}

TEST_F(CacheEventServiceTest, ACallerThatMayNotWatchIsRefused) {
  allowed_ = absl::PermissionDeniedError("not you");
  Watch watch(stub_.get());
  EXPECT_FALSE(watch.Read());
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(CacheEventServiceTest, StreamsAreBounded) {
  std::vector<std::unique_ptr<Watch>> watches;
  for (size_t i = 0; i < CacheEventService::kMaxStreams; ++i) {
    watches.push_back(std::make_unique<Watch>(stub_.get()));
    ASSERT_TRUE(watches.back()->Read());
  }
  Watch one_more(stub_.get());
  EXPECT_FALSE(one_more.Read());
  EXPECT_EQ(one_more.reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.pop_back();
  // Until the server has heard that it has gone.
  for (;;) {
    Watch next(stub_.get());
    if (next.Read()) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

TEST_F(CacheEventServiceTest, AHostThatHasMostMakesRoomForAnother) {
  std::vector<std::unique_ptr<Watch>> watches;
  for (size_t i = 0; i < CacheEventService::kMaxStreams; ++i) {
    watches.push_back(std::make_unique<Watch>(stub_.get()));
    ASSERT_TRUE(watches.back()->Read());
  }
  const auto other = v1::CacheEvents::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", socket_), grpc::InsecureChannelCredentials()));
  Watch one_more(other.get());
  EXPECT_TRUE(one_more.Read());
  // The oldest.
  EXPECT_FALSE(watches[0]->Read());
  EXPECT_EQ(watches[0]->reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  Add(1);
  EXPECT_TRUE(watches[1]->Read());
}

TEST_F(CacheEventServiceTest, AServerThatStopsDoesNotWaitForACallerThatDoesNotRead) {
  Watch slow(stub_.get());
  ASSERT_TRUE(slow.Read());
  for (uint64_t key = 0; key < 1'000'000; ++key) Add(key);
  service_.End();
  const absl::Time begin = absl::Now();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(30));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(CacheEventServiceTest, AServerThatStopsEndsThem) {
  Watch watch(stub_.get());
  ASSERT_TRUE(watch.Read());
  service_.End();
  EXPECT_FALSE(watch.Read());
  // CANCELLED where the server had not yet heard that the event was taken.
  EXPECT_FALSE(watch.reader->Finish().ok());
  Watch late(stub_.get());
  EXPECT_FALSE(late.Read());
  EXPECT_EQ(late.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace aludel
