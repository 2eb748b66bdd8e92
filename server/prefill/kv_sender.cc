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

bool KvSender::Fits(size_t weight, size_t frame) const {
  if (!outcome_.status.ok()) return true;
  // The end of the ring may stay empty for a turn.
  if (ring_.held() > 0 && ring_.held() + weight + frame > ring_.size()) return false;
  return !credit_ || weight_ + weight <= *credit_;
}

bool KvSender::HasRoom(size_t weight, size_t frame) {
  absl::MutexLock lock(&mutex_);
  if (Fits(weight, frame)) return true;
  if (wanted_weight_ == 0) {
    metrics_->CountStall(credit_ && weight_ + weight > *credit_ ? Stall::kReceiver : Stall::kLink);
  }
  wanted_weight_ = weight;
  wanted_frame_ = frame;
  return false;
}

std::function<void()> KvSender::TakeRoomCall() {
  if (wanted_weight_ == 0 || finishing_ || !Fits(wanted_weight_, wanted_frame_)) return nullptr;
  wanted_weight_ = 0;
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

absl::StatusOr<absl::Span<uint8_t>> KvSender::Reserve(size_t max_bytes) {
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
  reserved_ = *place;
  if (record_times_) encoded_from_ = MonotonicNow();
  return reserved_.subspan(0, max_bytes);
}

absl::Status KvSender::Commit(const FrameCoverage& coverage, size_t bytes) {
  const size_t on_wire = bytes + (cipher_ == nullptr ? 0 : FrameCipher::kTagBytes);
  ALUDEL_CHECK(on_wire <= reserved_.size());
  const absl::Span<uint8_t> payload = std::exchange(reserved_, {}).subspan(0, on_wire);

  header_.coverage = coverage;
  header_.payload_bytes = static_cast<uint32_t>(on_wire);
  if (cipher_ != nullptr) cipher_->Seal(header_.sequence, EncodeFrameHeader(header_, {}), payload);
  const auto header = EncodeFrameHeader(header_, payload);
  ++header_.sequence;
  {
    absl::MutexLock lock(&mutex_);
    ring_.Shrink(on_wire);
    weight_ += FrameRing::Weight(on_wire);
    ++unfinished_;
    ++outcome_.frames;
    outcome_.frame_bytes += header.size() + on_wire;
  }
  metrics_->handoffs.CountFrame("sent", format_, header.size() + on_wire);
  if (record_times_) times_.push_back({coverage, encoded_from_, MonotonicNow()});
  connection_->Send(header, payload,
                    [self = shared_from_this(), place = payload.data()](const absl::Status& status) {
                      self->OnSent(place, status);
                    });
  return absl::OkStatus();
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
