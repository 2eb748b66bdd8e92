#include "runtime/engine/engine_intake.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/core_list.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kFramesPerStep = 8;
// More of them while applying takes no more than this part of a step: where many handoffs come at once, the last tokens of all
// of them would wait for steps of others, each far longer than what those frames take.
constexpr double kShareOfAStep = 0.125;
// Beside a device, whose steps would wait for what one of them makes of a long prompt's frames.
constexpr size_t kMostOpeners = 4;

FrameLedger NewLedger(const CodecSpec& codec, const Sequence& sequence) {
  return {codec.shipped_layers, static_cast<uint32_t>(codec.recomputed_head_tokens),
          static_cast<uint32_t>(sequence.handed_over)};
}

}  // namespace

size_t EngineIntake::OpenerThreads() const {
  return marks_ == nullptr ? 1 : std::clamp<size_t>(AllowedCores().size() - 1, 1, kMostOpeners);
}

KvTarget EngineIntake::Target(const Sequence& sequence, const Receiving& receiving) const {
  return {model_,
          pool_,
          sequence.blocks.ids(),
          absl::MakeConstSpan(sequence.tokens).subspan(0, sequence.prompt_tokens),
          sequence.handed_over,
          receiving.codec->spec().recomputed_head_tokens,
          sequence.AdapterAt(0)};
}

absl::Status EngineIntake::Begin(Sequence& sequence) {
  sequence.clock.Charge(&sequence.times.queue);
  absl::Status begun = sequence.receiving->decoder->Begin(Target(sequence, *sequence.receiving));
  sequence.owed_head = sequence.receiving->codec->spec().recomputed_head_tokens;
  sequence.clock.Charge(&sequence.times.recompute);
  return begun;
}

void EngineIntake::Push(PendingFrame frame, const SequenceMap& sequences) {
  const auto found = sequences.find(frame.id);
  if (found != sequences.end() && found->second->awaiting()) {
    const DecoderFactory& codec = *found->second->receiving->codec;
    // Frames of other kinds, or that say they have more tokens than are handed over, are refused as they are: a few bytes of codes may
    // stand for any number of tokens.
    if (codec.opener() != nullptr && frame.header.kind == codec.spec().kind &&
        frame.header.coverage.tokens <= found->second->handed_over) {
      frame.codec_owner = found->second->codec_owner;
      return opener_.Push(std::move(frame), codec.opener());
    }
  }
  Enqueue(std::move(frame));
}

void EngineIntake::FallBack(Sequence& sequence, const absl::Status& reason) {
  sequence.clock.Charge(&sequence.times.await);
  sequence.receiving.reset();
  sequence.owed_head = 0;
  blocks_->FallBack(sequence);
  sequence.fell_back = true;
  sequence.fallback_reason = reason;
  ++counters_->fallbacks;
}

void EngineIntake::DropFrames(SequenceId id) {
  opener_.Drop(id);
  for (std::deque<PendingFrame>* const frames : {&frames_, &second_parts_}) {
    for (auto frame = frames->begin(); frame != frames->end();) {
      if (frame->id != id) {
        ++frame;
        continue;
      }
      frame->release();
      frame = frames->erase(frame);
    }
  }
}

void EngineIntake::EndUpgrade(Sequence& sequence) {
  DropFrames(sequence.id);
  sequence.upgrading.reset();
}

absl::Status EngineIntake::Restart(Sequence& sequence) {
  DropFrames(sequence.id);
  if (!sequence.awaiting()) return absl::OkStatus();
  sequence.clock.Charge(&sequence.times.await);
  Receiving& receiving = *sequence.receiving;
  ALUDEL_ASSIGN_OR_RETURN(receiving.decoder, receiving.codec->NewDecoder());
  receiving.ledger = NewLedger(receiving.codec->spec(), sequence);
  return Begin(sequence);
}

std::optional<std::pair<SequenceId, absl::Status>> EngineIntake::ApplySome(const SequenceMap& sequences,
                                                                           double step_seconds) {
  Settle();
  for (PendingFrame& frame : opener_.Take()) Enqueue(std::move(frame));
  if (empty()) return std::nullopt;
  if (unread_.size() == kMostUnread) {
    unread_.front().read->Await();
    Settle();
  }
  Unread unread;
  std::optional<std::pair<SequenceId, absl::Status>> failed;
  const SteadyClock::time_point begun = SteadyClock::now();
  const auto may_go_on = [&](int applied) {
    if (applied < kFramesPerStep) return true;
    // What a device takes for a frame is not known here.
    if (marks_ != nullptr) return false;
    const std::chrono::duration<double> taken = SteadyClock::now() - begun;
    return taken.count() < kShareOfAStep * step_seconds;
  };
  for (int i = 0; !failed && !empty() && may_go_on(i); ++i) {
    std::deque<PendingFrame>& frames = frames_.empty() ? second_parts_ : frames_;
    PendingFrame frame = std::move(frames.front());
    frames.pop_front();
    const auto found = sequences.find(frame.id);
    if (found != sequences.end() && found->second->upgrading) {
      UpgradeOne(*found->second, frame);
    } else if (found == sequences.end() || !found->second->awaiting()) {
      ++counters_->frames_rejected;
    } else if (absl::Status status = ApplyOne(*found->second, frame); !status.ok()) {
      failed.emplace(frame.id, std::move(status));
    }
    if (marks_ == nullptr) {
      frame.release();
    } else {
      unread.releases.push_back(std::move(frame.release));
    }
  }
  if (marks_ != nullptr) {
    unread.read = marks_->MarkOf(model_->stream());
    unread_.push_back(std::move(unread));
  }
  return failed;
}

void EngineIntake::Settle() {
  for (; !unread_.empty() && unread_.front().read->Passed(); unread_.pop_front()) {
    for (const auto& release : unread_.front().releases) release();
  }
}

absl::Status EngineIntake::ApplyOne(Sequence& sequence, const PendingFrame& frame) {
  sequence.clock.Charge(&sequence.times.await);
  absl::Status status = Apply(sequence, *sequence.receiving, /*plane=*/0, frame);
  sequence.clock.Charge(&sequence.times.reconstruct);
  if (!status.ok()) {
    ++counters_->frames_rejected;
    // Of duplicates the first received stays.
    return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
  }
  ++counters_->frames_applied;
  if (sequence.receiving->ledger.complete()) Received(sequence);
  return absl::OkStatus();
}

void EngineIntake::Received(Sequence& sequence) {
  Receiving receiving = *std::exchange(sequence.receiving, std::nullopt);
  const CodecSpec& codec = receiving.codec->spec();
  if (codec.base_planes > 0) {
    receiving.ledger = NewLedger(codec, sequence);
    sequence.upgrading = std::move(receiving);
    sequence.shared_end = 0;
  }
  blocks_->Received(sequence);
}

void EngineIntake::UpgradeOne(Sequence& sequence, const PendingFrame& frame) {
  sequence.clock.Charge(&sequence.times.queue);
  Receiving& upgrading = *sequence.upgrading;
  const absl::Status status = Apply(sequence, upgrading, upgrading.codec->spec().base_planes, frame);
  sequence.clock.Charge(&sequence.times.reconstruct);
  ++(status.ok() ? counters_->frames_applied : counters_->frames_rejected);
  if (absl::IsAlreadyExists(status) || (status.ok() && !upgrading.ledger.complete())) return;
  if (status.ok()) blocks_->Upgraded(sequence);
  EndUpgrade(sequence);
  sequence.listener->OnUpgraded(status, sequence.completion_tokens());
}

absl::Status EngineIntake::Apply(Sequence& sequence, Receiving& receiving, int plane,
                                 const PendingFrame& frame) {
  if (frame.opened.has_value()) {
    ALUDEL_RETURN_IF_ERROR(frame.opened->status());
  } else {
    ALUDEL_RETURN_IF_ERROR(VerifyFrame(frame.header_bytes, frame.payload));
  }
  if (frame.header.kind != receiving.codec->spec().kind) {
    return absl::DataLossError(absl::StrFormat(
        "frame kind is %d, the ticket's format %s has %d", static_cast<int>(frame.header.kind),
        receiving.codec->spec().name, static_cast<int>(receiving.codec->spec().kind)));
  }
  if (frame.header.coverage.plane != plane) {
    return absl::DataLossError(absl::StrFormat("frame holds planes from %d on, want them from %d on",
                                               frame.header.coverage.plane, plane));
  }
  FrameCoverage cells = frame.header.coverage;
  cells.plane = 0;
  ALUDEL_RETURN_IF_ERROR(receiving.ledger.Add(cells));
  const KvTarget target = Target(sequence, receiving);
  return frame.opened.has_value()
             ? receiving.decoder->ApplyOpened(frame.header.coverage, ***frame.opened, target)
             : receiving.decoder->Apply(frame.header.coverage, frame.payload, target);
}

void EngineIntake::ReleaseAll() {
  opener_.Stop();
  for (std::deque<PendingFrame>* const frames : {&frames_, &second_parts_}) {
    for (PendingFrame& frame : *frames) frame.release();
    frames->clear();
  }
  if (!unread_.empty()) unread_.back().read->Await();
  Settle();
}

}  // namespace aludel
