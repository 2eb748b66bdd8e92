#include "server/prefill/prefix_feed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/status_macros.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Chunks that are read before their turn: enough to keep a disk busy, and few to have in memory for each run.
constexpr size_t kReadAhead = 4;
// How long a chunk may take to be read before its tokens are computed instead.
constexpr absl::Duration kReadLimit = absl::Seconds(1);

}  // namespace

void PrefixFeed::Start(std::shared_ptr<FrameSink> sink, HasRoom has_room,
                       std::function<void(absl::StatusOr<Sent>)> done) {
  sink_ = std::move(sink);
  has_room_ = std::move(has_room);
  found_ = context_.store->Begin(*prompt_.codec, prompt_.salt);
  root_ = found_.key;
  sent_ = found_;
  {
    absl::MutexLock lock(&mutex_);
    done_ = std::move(done);
    running_ = true;
  }
  Run();
}

void PrefixFeed::Run() {
  const std::shared_ptr<PrefixFeed> self = shared_from_this();  // `done` may drop the last other one
  absl::StatusOr<bool> all = false;
  std::function<void(absl::StatusOr<Sent>)> done;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      resumed_ = false;
      all = stopped_.ok() ? absl::StatusOr<bool>(false) : stopped_;
    }
    if (all.ok()) all = Go();
    absl::MutexLock lock(&mutex_);
    if (all.ok() && !*all) {
      if (resumed_ || !stopped_.ok()) continue;
      running_ = false;
      return;
    }
    std::swap(done, done_);
    break;
  }
  sink_ = nullptr;
  if (!all.ok()) {
    flight_ = nullptr;
    return done(all.status());
  }
  context_.store->CountLookup(sent_.tokens - disk_tokens_, disk_tokens_,
                              static_cast<int64_t>(prompt_.tokens.size()));
  done(Sent{sent_, std::move(flight_)});
}

void PrefixFeed::Resume() {
  absl::MutexLock lock(&mutex_);
  resumed_ = true;
  if (running_ || done_ == nullptr) return;
  running_ = true;
  context_.timer->At(MonotonicNow(), [self = shared_from_this()] { self->Run(); });
}

void PrefixFeed::Stop(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_.ok()) stopped_ = reason;
  }
  Resume();
}

absl::StatusOr<bool> PrefixFeed::Go() {
  for (;;) {
    ALUDEL_ASSIGN_OR_RETURN(const bool sent, SendFound());
    if (!sent) return false;
    if (found_.tokens == static_cast<int64_t>(prompt_.tokens.size())) {
      flight_ = nullptr;
      return true;
    }
    if (!gave_up_) {
      for (StoredChunk& chunk : context_.store->Find(prompt_.tokens, prompt_.max_age, &found_)) {
        auto item = std::make_shared<Item>(Item{.chunk = std::move(chunk)});
        item->from_disk = item->chunk.frames == nullptr;
        item->frames = item->chunk.frames;
        chunks_.push_back(std::move(item));
      }
    }
    if (flight_ != nullptr) {
      if (chunks_.empty()) return true;
      flight_->Advance(found_.tokens);
    } else if (chunks_.empty() && !Join()) {
      return false;
    }
  }
}

absl::StatusOr<bool> PrefixFeed::SendFound() {
  while (!chunks_.empty()) {
    ReadAhead();
    const StoredFrames frames = FirstFrames();
    if (frames == nullptr && chunks_.empty()) break;
    if (frames == nullptr) return false;
    for (; frame_ < frames->size(); ++frame_) {
      const StoredFrame& frame = (*frames)[frame_];
      if (!has_room_(FrameRing::Weight(frame.payload.size() + FrameCipher::kTagBytes))) return false;
      ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(frame.payload.size()));
      std::copy(frame.payload.begin(), frame.payload.end(), payload.begin());
      ALUDEL_RETURN_IF_ERROR(sink_->Commit(frame.coverage, frame.payload.size()));
    }
    const Item& item = *chunks_.front();
    if (item.from_disk) disk_tokens_ += item.chunk.end.tokens - sent_.tokens;
    sent_ = item.chunk.end;
    chunks_.pop_front();
    frame_ = 0;
  }
  return true;
}

void PrefixFeed::ReadAhead() {
  const auto resume = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Resume();
  };
  for (size_t i = 0; i < std::min(kReadAhead, chunks_.size()); ++i) {
    const std::shared_ptr<Item>& item = chunks_[i];
    if (!item->from_disk || item->asked != absl::InfiniteFuture()) continue;
    item->asked = MonotonicNow();
    context_.store->Load(item->chunk, prompt_.tokens, [weak = weak_from_this(), item](StoredFrames frames) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      {
        absl::MutexLock lock(&self->mutex_);
        item->read = true;
        item->frames = std::move(frames);
      }
      self->Resume();
    });
    context_.timer->At(item->asked + kReadLimit, resume);
  }
}

StoredFrames PrefixFeed::FirstFrames() {
  const Item& item = *chunks_.front();
  {
    absl::MutexLock lock(&mutex_);
    if (item.frames != nullptr) return item.frames;
    if (!item.read && MonotonicNow() < item.asked + kReadLimit) return nullptr;
  }
  gave_up_ = true;
  found_ = sent_;
  chunks_.clear();
  return nullptr;
}

bool PrefixFeed::Join() {
  const absl::Time now = MonotonicNow();
  // What nothing stored may serve, nothing that another run stores may either.
  if (gave_up_ || now >= waits_until_ || prompt_.max_age <= absl::ZeroDuration() ||
      !context_.store->enabled()) {
    flight_ = context_.flights->Begin(root_, prompt_.tokens, found_.tokens);
    return true;
  }
  const auto resume = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Resume();
  };
  flight_ = context_.flights->Join(root_, prompt_.tokens, found_.tokens, resume);
  if (flight_ != nullptr) return true;
  if (waits_until_ == absl::InfiniteFuture()) {
    waits_until_ = now + prompt_.patience;
    context_.timer->At(waits_until_, resume);
  }
  return false;
}

}  // namespace aludel
