#include "server/decode/codes/code_replay.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {

CodeReplay::CodeReplay(const KeptCodes* codes, Timer* timer, Spec spec, FrameExtent extent, Deliver deliver)
    : codes_(codes),
      timer_(timer),
      spec_(std::move(spec)),
      deliver_(std::move(deliver)),
      ring_(std::move(extent)) {
  header_.kind = spec_.codec->kind;
  header_.artifact = ArtifactPrefix(spec_.codec->artifact_hash);
}

void CodeReplay::Start(std::function<void(const absl::Status&)> done) {
  // No other run's encoding is waited for: what is not stored is another's to get.
  const auto feed = std::make_shared<PrefixFeed>(
      PrefixFeed::Context{.store = &codes_->store(), .flights = nullptr, .timer = timer_},
      PrefixFeed::Prompt{.codec = spec_.codec.get(),
                         .salt = spec_.salt,
                         .tokens = spec_.prompt,
                         .tokens_per_second = codes_->prefill_tokens_per_second(),
                         .stores = false});
  {
    absl::MutexLock lock(&mutex_);
    feed_ = feed;
  }
  const auto tokens = static_cast<int64_t>(spec_.prompt.size());
  feed->Start(
      shared_from_this(), [this](size_t payload_bytes) { return HasRoom(payload_bytes); },
      [tokens, done = std::move(done)](const absl::StatusOr<PrefixFeed::Sent>& sent) {
        if (!sent.ok()) return done(sent.status());
        if (sent->end.tokens == tokens) return done(absl::OkStatus());
        done(absl::DataLossError(
            absl::StrFormat("codes of %d of %d tokens are not in this server's store any more",
                            tokens - sent->end.tokens, tokens)));
      });
}

void CodeReplay::Stop() {
  std::shared_ptr<PrefixFeed> feed;
  {
    absl::MutexLock lock(&mutex_);
    feed = std::exchange(feed_, nullptr);
  }
  if (feed != nullptr) feed->Stop(absl::CancelledError("no more frames are wanted"));
}

bool CodeReplay::HasRoom(size_t payload_bytes) {
  const size_t weight = FrameRing::Weight(payload_bytes);
  absl::MutexLock lock(&mutex_);
  largest_ = std::max(largest_, weight);
  // The end of the ring that stays empty for a turn is as large as the frame that did not fit there, which may have been
  // any so far.
  wants_room_ = ring_.held() > 0 && ring_.held() + weight + largest_ > ring_.size();
  return !wants_room_;
}

absl::StatusOr<absl::Span<uint8_t>> CodeReplay::Reserve(size_t max_bytes) {
  absl::MutexLock lock(&mutex_);
  const auto place = ring_.Take(max_bytes);
  if (!place) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a stored frame has %d bytes, the handoff's memory %d, of which %d are held",
                        max_bytes, ring_.size(), ring_.held()));
  }
  reserved_ = *place;
  return *place;
}

absl::Status CodeReplay::Commit(const FrameCoverage& coverage, size_t bytes) {
  ALUDEL_CHECK(bytes <= reserved_.size());
  const absl::Span<const uint8_t> payload = std::exchange(reserved_, {}).first(bytes);
  header_.coverage = coverage;
  header_.payload_bytes = static_cast<uint32_t>(bytes);
  const auto header_bytes = EncodeFrameHeader(header_, payload);
  deliver_(header_, {header_bytes.begin(), header_bytes.end()}, payload,
           [self = shared_from_this(), place = payload.data()]() mutable {
             self->Release(place);
             self.reset();
           });
  ++header_.sequence;
  return absl::OkStatus();
}

void CodeReplay::Release(const uint8_t* place) {
  std::shared_ptr<PrefixFeed> feed;
  {
    absl::MutexLock lock(&mutex_);
    ring_.Return(place);
    if (std::exchange(wants_room_, false)) feed = feed_;
  }
  if (feed != nullptr) feed->Resume();
}

}  // namespace aludel
