// Streams that misbehave, over real gRPC. What becomes of what is said is in tests/server/gateway/cache_feeds_test.cc.
#include "server/rpc/cache_events/cache_feeds.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_events/cache_event_service.h"
#include "server/rpc/callback_threads.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using Writer = grpc::ServerWriter<v1::CacheEvent>;

v1::CacheEvent EmptySnapshot() {
  v1::CacheEvent event;
  event.set_epoch(7);
  event.set_piece(0);
  event.set_complete(true);
  return event;
}

// A server that says whatever a test has it say.
struct ScriptedServer : public v1::CacheEvents::Service {
  explicit ScriptedServer(std::function<void(Writer*)> script_of_streams)
      : script(std::move(script_of_streams)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server = builder.BuildAndStart();
  }
  ~ScriptedServer() override { server->Shutdown(std::chrono::system_clock::now()); }
  grpc::Status Watch(grpc::ServerContext*, const v1::WatchCacheRequest*, Writer* writer) override {
    ++streams;
    script(writer);
    return grpc::Status::OK;
  }

  const std::function<void(Writer*)> script;
  std::atomic<int> streams = 0;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

// A server as they are.
struct TellingServer {
  TellingServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
  }
  ~TellingServer() {
    service.End();
    server->Shutdown();
  }
  void Add(uint64_t first, uint64_t count) {
    for (uint64_t key = first; key < first + count; ++key) log.Add({key, 0});
    service.Flush();
  }

  KeyLog log{{.epoch = 7}};
  CacheEventService service{&log, [](const grpc::CallbackServerContext&) { return absl::OkStatus(); }};
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

class Source : public CacheSource {
 public:
  explicit Source(int port)
      : name_(absl::StrCat("127.0.0.1:", port)),
        stub_(v1::CacheEvents::NewStub(grpc::CreateChannel(name_, grpc::InsecureChannelCredentials()))) {
    KeepCallbackThreads();  // the end of a stream may drop the last channel
  }

  const std::string& cache_name() const override { return name_; }
  v1::CacheEvents::Stub* cache_stub() const override { return stub_.get(); }
  bool cache_wanted() const override { return true; }
  std::optional<size_t> CacheKnown(const CacheMirror& mirror) override {
    ++snapshots;
    return keys = mirror.changes().size();
  }
  std::optional<size_t> CacheChanged(const CacheMirror& mirror) override {
    return keys += mirror.changes().size();
  }
  void CacheUnknown() override { keys = 0; }

  std::atomic<int> snapshots = 0;
  std::atomic<size_t> keys = 0;

 private:
  const std::string name_;
  const std::unique_ptr<v1::CacheEvents::Stub> stub_;
};

void TendUntil(CacheFeeds* feeds, const std::vector<std::shared_ptr<CacheSource>>& sources, absl::Time until,
               const std::function<bool()>& condition) {
  while (MonotonicNow() < until && !condition()) {
    feeds->Tend(sources);
    absl::SleepFor(absl::Milliseconds(5));
  }
}

TEST(CacheFeeds, AStreamThatEndsAfterItsSnapshotIsOpenedLaterAndLater) {
  ScriptedServer server([](Writer* writer) { writer->Write(EmptySnapshot()); });
  const auto source = std::make_shared<Source>(server.port);
  CacheFeeds feeds({.server_keys = 1000, .all_keys = 1000});
  TendUntil(&feeds, {source}, MonotonicNow() + absl::Seconds(2), [] { return false; });
  EXPECT_GE(source->snapshots, 2);
  // After .1, .3, .7 and 1.5 s; at .1 s each there were 19.
  EXPECT_LE(server.streams, 6);
}

TEST(CacheFeeds, AStreamHasOneSnapshotAfterTheOtherAndNotMany) {
  ScriptedServer server([](Writer* writer) {
    for (int i = 0; i < 1000; ++i) writer->Write(EmptySnapshot());
  });
  const auto source = std::make_shared<Source>(server.port);
  CacheFeeds feeds({.server_keys = 1000, .all_keys = 1000});
  TendUntil(&feeds, {source}, MonotonicNow() + absl::Seconds(1), [] { return false; });
  EXPECT_GE(source->snapshots, 1);
  EXPECT_LE(source->snapshots, 6);
}

TEST(CacheFeeds, TheServerThatTellsMostTakesNothingFromOthers) {
  TellingServer large, small, late;
  large.Add(0, 5000);
  small.Add(0, 100);
  late.Add(0, 100);
  const auto of_large = std::make_shared<Source>(large.port), of_small = std::make_shared<Source>(small.port),
             of_late = std::make_shared<Source>(late.port);
  std::vector<std::shared_ptr<CacheSource>> sources = {of_large, of_small};
  CacheFeeds feeds({.server_keys = 5150, .all_keys = 5150});
  const absl::Time limit = MonotonicNow() + absl::Seconds(30);
  TendUntil(&feeds, sources, limit, [&] { return of_large->keys == 5000u && of_small->keys == 100u; });
  ASSERT_EQ(of_large->keys, 5000u);
  ASSERT_EQ(of_small->keys, 100u);
  sources.push_back(of_late);
  TendUntil(&feeds, sources, limit, [&] { return of_late->keys == 100u && of_large->keys == 0u; });
  EXPECT_EQ(of_large->keys, 0u);
  EXPECT_EQ(of_late->keys, 100u);
  small.Add(1000, 1000);
  TendUntil(&feeds, sources, limit, [&] { return of_small->keys == 1100u; });
  EXPECT_EQ(of_small->keys, 1100u);
  EXPECT_EQ(of_small->snapshots, 1);
}

}  // namespace
}  // namespace aludel
