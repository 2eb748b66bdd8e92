#include "server/prefill/kv_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/codec/frame.h"
#include "transport/monotonic_clock.h"

namespace aludel {

std::shared_ptr<KvSender> KvSender::Create(Spec spec, const PrefillMetrics* metrics) {
  return std::shared_ptr<KvSender>(new KvSender(std::move(spec), metrics));
}

KvSender::KvSender(Spec spec, const PrefillMetrics* metrics)
    : connection_(std::move(spec.connection)),
      format_(spec.codec->name),
      cipher_(std::move(spec.cipher)),
      on_room_(std::move(spec.on_room)),
      metrics_(metrics),
      record_times_(spec.record_times),
      ring_(std::move(spec.window)),
      credit_(spec.credit) {
  header_.kind = spec.codec->kind;
  header_.ticket = spec.ticket;
  header_.epoch = spec.epoch;
  header_.artifact = ArtifactPrefix(spec.codec->artifact_hash);
}

KvSender::Lane::Lane(std::shared_ptr<KvSender> sender, bool alone)
    : sender_(std::move(sender)), alone_(alone) {
  absl::MutexLock lock(&sender_->mutex_);
  sender_->lanes_.push_back(this);
}

KvSender::Lane::~Lane() {
  GiveBack();
  absl::MutexLock lock(&sender_->mutex_);
  sender_->lanes_.erase(std::find(sender_->lanes_.begin(), sender_->lanes_.end(), this));
}

bool KvSender::Lane::HasRoom(size_t weight, size_t frame) { return sender_->HasRoom(*this, weight, frame); }

void KvSender::Lane::GiveBack() {
  std::function<void()> on_room;
  {
    absl::MutexLock lock(&sender_->mutex_);
    kept_ = 0;
    wanted_weight_ = 0;
    on_room = sender_->TakeRoomCall();
  }
  if (on_room) on_room();
}

absl::StatusOr<absl::Span<uint8_t>> KvSender::Lane::Reserve(size_t max_bytes) {
  return sender_->Reserve(*this, max_bytes);
}

absl::Status KvSender::Lane::Commit(const FrameCoverage& coverage, size_t bytes) {
  sender_->Commit(*this, coverage, bytes);
  return absl::OkStatus();
}

size_t KvSender::KeptByOthers(const Lane& lane) const {
  size_t kept = 0;
  for (const Lane* other : lanes_) kept += other == &lane ? 0 : other->kept_;
  return kept;
}

bool KvSender::Fits(const Lane& lane, size_t weight, size_t frame) const {
  if (!outcome_.status.ok()) return true;
  const size_t kept = KeptByOthers(lane);
  const size_t used = ring_.held() + kept;
  if (lane.alone_ && used > 0) return false;
  // The end of the ring may stay empty for a turn, as much of it as any frame so far may not have fitted into.
  if (used > 0 && used + weight + std::max(frame, largest_) > ring_.size()) return false;
  return !credit_ || weight_ + open_ + kept + weight <= *credit_;
}

bool KvSender::HasRoom(Lane& lane, size_t weight, size_t frame) {
  std::function<void()> on_room;  // what the lane kept may have been what another waits for
  bool fits = false;
  {
    absl::MutexLock lock(&mutex_);
    lane.kept_ = 0;
    fits = Fits(lane, weight, frame);
    if (fits) {
      lane.kept_ = weight;
      lane.wanted_weight_ = 0;
    } else {
      if (lane.wanted_weight_ == 0 && !lane.alone_) {
        const bool by_receiver = credit_ && weight_ + open_ + KeptByOthers(lane) + weight > *credit_;
        metrics_->CountStall(by_receiver ? Stall::kReceiver : Stall::kLink);
      }
      lane.wanted_weight_ = weight;
      lane.wanted_frame_ = frame;
    }
    on_room = TakeRoomCall();
  }
  if (on_room) on_room();
  return fits;
}

std::function<void()> KvSender::TakeRoomCall() {
  const bool any = !finishing_ && std::any_of(lanes_.begin(), lanes_.end(), [this](const Lane* lane) {
    mutex_.AssertHeld();
    return lane->wanted_weight_ > 0 && Fits(*lane, lane->wanted_weight_, lane->wanted_frame_);
  });
  if (!any) return nullptr;
  for (Lane* lane : lanes_) lane->wanted_weight_ = 0;
  return on_room_;
}

void KvSender::Grant(uint64_t credit) {
  std::function<void()> on_room;
  {
    absl::MutexLock lock(&mutex_);
    if (!credit_) return;
    credit_ = std::max(*credit_, credit);
    on_room = TakeRoomCall();
  }
  if (on_room) on_room();
}

absl::StatusOr<absl::Span<uint8_t>> KvSender::Reserve(Lane& lane, size_t max_bytes) {
  // The codec is not given the room for the tag.
  const size_t tag = cipher_ == nullptr ? 0 : FrameCipher::kTagBytes;
  absl::MutexLock lock(&mutex_);
  if (!outcome_.status.ok()) return outcome_.status;
  const auto place = ring_.Take(max_bytes + tag);
  if (!place) {
    return absl::ResourceExhaustedError(absl::StrCat("the handoff's send memory of ", ring_.size(),
                                                     " bytes holds ", ring_.held(), ", the next frame needs ",
                                                     max_bytes + tag));
  }
  const size_t weight = FrameRing::Weight(max_bytes + tag);
  open_ += weight;
  largest_ = std::max(largest_, weight);
  lane.kept_ -= std::min(lane.kept_, weight);
  lane.reserved_.push_back({*place, record_times_ ? MonotonicNow() : absl::Time()});
  return place->subspan(0, max_bytes);
}

void KvSender::Commit(Lane& lane, const FrameCoverage& coverage, size_t bytes) {
  const size_t on_wire = bytes + (cipher_ == nullptr ? 0 : FrameCipher::kTagBytes);
  ALUDEL_CHECK(!lane.reserved_.empty() && on_wire <= lane.reserved_.front().place.size());
  const Lane::Reserved reserved = lane.reserved_.front();
  lane.reserved_.pop_front();
  const size_t reserved_weight = FrameRing::Weight(reserved.place.size());
  const absl::Span<uint8_t> payload = reserved.place.subspan(0, on_wire);

  absl::MutexLock order(&order_mutex_);
  header_.coverage = coverage;
  header_.payload_bytes = static_cast<uint32_t>(on_wire);
  if (cipher_ != nullptr) cipher_->Seal(header_.sequence, EncodeFrameHeader(header_, {}), payload);
  const auto header = EncodeFrameHeader(header_, payload);
  ++header_.sequence;
  {
    absl::MutexLock lock(&mutex_);
    ring_.Shrink(payload.data(), on_wire);
    open_ -= reserved_weight;
    weight_ += FrameRing::Weight(on_wire);
    ++unfinished_;
    ++outcome_.frames;
    outcome_.frame_bytes += header.size() + on_wire;
  }
  metrics_->handoffs.CountFrame("sent", format_, header.size() + on_wire);
  if (record_times_) times_.push_back({coverage, reserved.encoded_from, MonotonicNow()});
  connection_->Send(header, payload,
                    [self = shared_from_this(), place = payload.data()](const absl::Status& status) {
                      self->OnSent(place, status);
                    });
}

void KvSender::OnSent(const uint8_t* place, const absl::Status& status) {
  std::function<void(const Outcome&)> done;
  std::function<void()> on_room;
  Outcome outcome;
  {
    absl::MutexLock lock(&mutex_);
    ring_.Return(place);
    --unfinished_;
    if (outcome_.status.ok()) outcome_.status = status;
    if (unfinished_ == 0) std::swap(done, done_);
    on_room = TakeRoomCall();
    outcome = outcome_;
  }
  if (on_room) on_room();
  if (done) done(outcome);
}

std::vector<v1::FrameTimes> KvSender::TakeTimes(absl::Time origin) {
  std::vector<v1::FrameTimes> all;
  absl::MutexLock order(&order_mutex_);
  for (const Times& times : std::exchange(times_, {})) {
    v1::FrameTimes& wire = all.emplace_back();
    wire.set_first_layer(times.coverage.first_layer);
    wire.set_layers(times.coverage.layers);
    wire.set_token_begin(times.coverage.token_begin);
    wire.set_tokens(times.coverage.tokens);
    wire.set_encoded_from_us(absl::ToDoubleMicroseconds(times.encoded_from - origin));
    wire.set_sent_us(absl::ToDoubleMicroseconds(times.sent - origin));
  }
  return all;
}

void KvSender::Finish(std::function<void(const Outcome&)> done) {
  Outcome outcome;
  {
    absl::MutexLock lock(&mutex_);
    ALUDEL_CHECK(!done_);
    finishing_ = true;
    if (unfinished_ > 0) {
      done_ = std::move(done);
      return;
    }
    outcome = outcome_;
  }
  done(outcome);
}

}  // namespace aludel
