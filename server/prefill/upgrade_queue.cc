#include "server/prefill/upgrade_queue.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/codec/aludel/plane_upgrades.h"
#include "runtime/status_macros.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "transport/monotonic_clock.h"

namespace aludel {

class UpgradeQueue::Splitter final : public FrameSink {
 public:
  Splitter(std::shared_ptr<UpgradeQueue> queue, std::shared_ptr<FrameSink> sink)
      : queue_(std::move(queue)), sink_(std::move(sink)) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(max_bytes));
    reserved_.push_back(payload);
    return payload;
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    const absl::Span<uint8_t> payload = reserved_.front().first(bytes);
    reserved_.pop_front();
    ALUDEL_ASSIGN_OR_RETURN(const PlaneSplit split, SplitPlanes(payload, queue_->base_planes_));
    queue_->Keep(coverage, split.upgrade);  // before the first part is shipped: then the memory is another's
    return sink_->Commit(coverage, split.base.size());
  }
  void Waited(double seconds) override { sink_->Waited(seconds); }

 private:
  const std::shared_ptr<UpgradeQueue> queue_;
  const std::shared_ptr<FrameSink> sink_;
  std::deque<absl::Span<uint8_t>> reserved_;  // the sink's, oldest first
};

std::shared_ptr<FrameSink> UpgradeQueue::FirstParts(std::shared_ptr<FrameSink> sink) {
  return std::make_shared<Splitter>(shared_from_this(), std::move(sink));
}

void UpgradeQueue::Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) {
  Part part{coverage, {payload.begin(), payload.end()}};
  part.coverage.plane = static_cast<uint16_t>(base_planes_);
  absl::MutexLock lock(&mutex_);
  if (!stopped_) parts_.push_back(std::move(part));
}

void UpgradeQueue::Send(std::shared_ptr<KvSender> sender, std::function<void()> done) {
  {
    absl::MutexLock lock(&mutex_);
    sender_ = std::move(sender);
    done_ = std::move(done);
  }
  RunSoon();
}

void UpgradeQueue::OnRoom() {
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
  }
  RunSoon();
}

void UpgradeQueue::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    parts_.clear();
    if (done_ == nullptr) return;
  }
  RunSoon();
}

void UpgradeQueue::RunSoon() {
  timer_->At(MonotonicNow(), [self = shared_from_this()] { self->Run(); });
}

void UpgradeQueue::Run() {
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    if (lane_ == nullptr) lane_ = std::make_unique<KvSender::Lane>(sender_, /*alone=*/true);
  }
  if (!SendAll()) return;
  lane_ = nullptr;
  std::function<void()> done;
  {
    // Goes before `done`: what the sender holds may not outlive the run.
    std::shared_ptr<KvSender> sender;
    absl::MutexLock lock(&mutex_);
    parts_.clear();
    sender = std::move(sender_);
    done = std::exchange(done_, nullptr);
  }
  done();
}

bool UpgradeQueue::SendAll() {
  for (;;) {
    Part part;
    {
      absl::MutexLock lock(&mutex_);
      if (parts_.empty()) return true;
      part = std::move(parts_.front());
      parts_.pop_front();
    }
    const size_t weight = FrameRing::Weight(part.payload.size() + FrameCipher::kTagBytes);
    if (!lane_->HasRoom(weight, weight)) {
      absl::MutexLock lock(&mutex_);
      if (!stopped_) parts_.push_front(std::move(part));
      return false;
    }
    const absl::StatusOr<absl::Span<uint8_t>> place = lane_->Reserve(part.payload.size());
    if (!place.ok()) return true;  // a send has failed, as its outcome says
    std::copy(part.payload.begin(), part.payload.end(), place->begin());
    if (!lane_->Commit(part.coverage, part.payload.size()).ok()) return true;
  }
}

}  // namespace aludel
