#include "server/prefill/prefix_feed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/status_macros.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "transport/monotonic_clock.h"

namespace aludel {

void PrefixFeed::Start(std::shared_ptr<FrameSink> sink, HasRoom has_room,
                       std::function<void(absl::StatusOr<Sent>)> done) {
  sink_ = std::move(sink);
  has_room_ = std::move(has_room);
  found_ = context_.store->Begin(*prompt_.codec, prompt_.salt);
  root_ = found_.key;
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
  context_.store->CountLookup(found_.tokens, static_cast<int64_t>(prompt_.tokens.size()));
  done(Sent{found_, std::move(flight_)});
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
    for (StoredChunk& chunk : context_.store->Find(prompt_.tokens, prompt_.max_age, &found_)) {
      chunks_.push_back(std::move(chunk));
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
  for (; !chunks_.empty(); chunks_.pop_front(), frame_ = 0) {
    const std::vector<StoredFrame>& frames = *chunks_.front().frames;
    for (; frame_ < frames.size(); ++frame_) {
      const StoredFrame& frame = frames[frame_];
      if (!has_room_(FrameRing::Weight(frame.payload.size() + FrameCipher::kTagBytes))) return false;
      ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(frame.payload.size()));
      std::copy(frame.payload.begin(), frame.payload.end(), payload.begin());
      ALUDEL_RETURN_IF_ERROR(sink_->Commit(frame.coverage, frame.payload.size()));
    }
  }
  return true;
}

bool PrefixFeed::Join() {
  const absl::Time now = MonotonicNow();
  // What nothing stored may serve, nothing that another run stores may either.
  if (now >= waits_until_ || prompt_.max_age <= absl::ZeroDuration() || !context_.store->enabled()) {
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
