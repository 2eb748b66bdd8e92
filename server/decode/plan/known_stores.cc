#include "server/decode/plan/known_stores.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "server/store/stored_prompts.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// One prefill server.
class KnownStores::Source : public CacheSource {
 public:
  Source(const std::string& name, std::shared_ptr<grpc::Channel> channel)
      : name_("prefill server " + name),
        channel_(std::move(channel)),
        stub_(v1::CacheEvents::NewStub(channel_)) {}

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  void Want(bool wanted) { wanted_ = wanted; }
  std::optional<int64_t> Find(const CodecSpec& codec, absl::string_view salt,
                              absl::Span<const int32_t> prompt) const {
    absl::ReaderMutexLock lock(&mutex_);
    if (!stored_) return std::nullopt;
    return stored_->Find(codec, salt, prompt);
  }

  bool known() const {
    absl::ReaderMutexLock lock(&mutex_);
    return stored_.has_value();
  }

  const std::string& cache_name() const override { return name_; }
  v1::CacheEvents::Stub* cache_stub() const override { return stub_.get(); }
  bool cache_wanted() const override { return wanted_; }
  std::optional<size_t> CacheKnown(const CacheMirror& mirror) override {
    absl::MutexLock lock(&mutex_);
    stored_.emplace(mirror.producer());
    return Apply(mirror);
  }
  std::optional<size_t> CacheChanged(const CacheMirror& mirror) override {
    absl::MutexLock lock(&mutex_);
    return Apply(mirror);
  }
  void CacheUnknown() override {
    absl::MutexLock lock(&mutex_);
    stored_.reset();
  }

 private:
  std::optional<size_t> Apply(const CacheMirror& mirror) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!stored_) return std::nullopt;
    for (const KeyChange& change : mirror.changes()) {
      if (change.removed()) {
        stored_->Remove(change.key);
      } else {
        stored_->Add(change.key);
      }
    }
    if (stored_->chunks() <= kMaxChunks) return stored_->chunks();
    stored_.reset();
    return std::nullopt;
  }

  const std::string name_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheEvents::Stub> stub_;
  std::atomic<bool> wanted_ = false;
  mutable absl::Mutex mutex_;
  std::optional<StoredPrompts> stored_ ABSL_GUARDED_BY(mutex_);
};

KnownStores::KnownStores(const PrefillPool* pool, Timer* timer) : pool_(pool), timer_(timer) { Tend(); }

KnownStores::~KnownStores() {
  Timer::Id tending = 0;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    tending = tending_;
  }
  timer_->CancelAndWait(tending);
}

void KnownStores::Tend() {
  std::vector<std::shared_ptr<CacheSource>> sources;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    std::map<std::string, std::shared_ptr<Source>> before;
    std::swap(before, sources_);
    for (PrefillPool::Server& server : pool_->CacheServers()) {
      std::shared_ptr<Source>& source = sources_[server.name];
      if (const auto known = before.find(server.name); known != before.end()) source = known->second;
      if (source == nullptr || source->channel() != server.channel) {
        source = std::make_shared<Source>(server.name, std::move(server.channel));
      }
      source->Want(server.usable);
      sources.push_back(source);
    }
  }
  feeds_.Tend(sources);
  absl::MutexLock lock(&mutex_);
  if (!stopping_) tending_ = timer_->At(MonotonicNow() + kTendInterval, [this] { Tend(); });
}

int KnownStores::known() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(absl::c_count_if(sources_, [](const auto& one) { return one.second->known(); }));
}

std::optional<int64_t> KnownStores::StoredTokens(const std::string& target, const CodecSpec& codec,
                                                 absl::string_view salt,
                                                 absl::Span<const int32_t> prompt) const {
  std::shared_ptr<const Source> source;
  {
    absl::MutexLock lock(&mutex_);
    const auto known = sources_.find(target);
    if (known == sources_.end()) return std::nullopt;
    source = known->second;
  }
  return source->Find(codec, salt, prompt);
}

}  // namespace aludel
