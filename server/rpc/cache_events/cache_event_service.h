#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/load.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "server/rpc/cache_events/key_log.h"

namespace aludel {

// The CacheEvents service: each stream reads a log as fast as its caller takes it, one event at a time. Where
// kMaxStreams are open, a host that has fewer than another takes the oldest one of that. Thread-safe.
class CacheEventService : public v1::CacheEvents::CallbackService {
 public:
  static constexpr size_t kMaxStreams = 64;
  // For how long changes may be gathered into one event.
  static constexpr absl::Duration kGather = absl::Milliseconds(20);
  // Whether a caller may watch.
  using Check = std::function<absl::Status(const grpc::CallbackServerContext& call)>;

  // `log` must outlive the service, and the service its server.
  CacheEventService(KeyLog* log, Check check) : log_(log), check_(std::move(check)) {}

  grpc::ServerWriteReactor<v1::CacheEvent>* Watch(grpc::CallbackServerContext* call,
                                                  const v1::WatchCacheRequest* request) override;

  // The log has changed: streams that wait for that go on.
  void Flush();
  // All streams end, and no other begins: a server that drains waits for them, though not for callers that do not read.
  void End();

 private:
  class Stream;
  void Ended(const std::shared_ptr<Stream>& stream);
  // The stream that ends for one more of `peer`; null: none does.
  std::shared_ptr<Stream> Displaced(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  KeyLog* const log_;
  const Check check_;
  absl::Mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
