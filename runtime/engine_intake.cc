#include "runtime/engine_intake.h"

#include "absl/strings/str_format.h"
#include "runtime/codec/hand_over.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kFramesPerStep = 8;

}  // namespace

KvTarget EngineIntake::Target(const Sequence& sequence) const {
  return {model_,
          pool_,
          sequence.blocks.ids(),
          absl::MakeConstSpan(sequence.tokens).subspan(0, sequence.prompt_tokens),
          sequence.handed_over,
          sequence.landing->codec->native_head_tokens()};
}

absl::Status EngineIntake::Begin(Sequence& sequence) {
  sequence.clock.Charge(&sequence.times.queue);
  absl::Status begun = BeginHandOver(*sequence.landing->decoder, Target(sequence));
  sequence.clock.Charge(&sequence.times.native);
  return begun;
}

void EngineIntake::FallBack(Sequence& sequence, const absl::Status& reason) {
  sequence.clock.Charge(&sequence.times.await);
  sequence.landing.reset();
  blocks_->FallBack(sequence);
  sequence.fell_back = true;
  sequence.fallback_reason = reason;
  ++counters_->fallbacks;
}

absl::Status EngineIntake::Restart(Sequence& sequence) {
  for (auto frame = frames_.begin(); frame != frames_.end();) {
    if (frame->id != sequence.id) {
      ++frame;
      continue;
    }
    frame->release();
    frame = frames_.erase(frame);
  }
  if (!sequence.awaiting()) return absl::OkStatus();
  sequence.clock.Charge(&sequence.times.await);
  Landing& landing = *sequence.landing;
  ALUDEL_ASSIGN_OR_RETURN(landing.decoder, landing.codec->NewDecoder());
  landing.ledger =
      FrameLedger(landing.codec->shipped_layers(), static_cast<uint32_t>(landing.codec->native_head_tokens()),
                  static_cast<uint32_t>(sequence.handed_over));
  return Begin(sequence);
}

std::optional<std::pair<SequenceId, absl::Status>> EngineIntake::ApplySome(const SequenceMap& sequences) {
  std::optional<std::pair<SequenceId, absl::Status>> failed;
  for (int i = 0; i < kFramesPerStep && !failed && !frames_.empty(); ++i) {
    const PendingFrame frame = std::move(frames_.front());
    frames_.pop_front();
    const auto found = sequences.find(frame.id);
    if (found == sequences.end() || !found->second->awaiting()) {
      ++counters_->frames_rejected;
    } else if (absl::Status status = ApplyOne(*found->second, frame); !status.ok()) {
      failed.emplace(frame.id, std::move(status));
    }
    frame.release();
  }
  return failed;
}

absl::Status EngineIntake::ApplyOne(Sequence& sequence, const PendingFrame& frame) {
  sequence.clock.Charge(&sequence.times.await);
  absl::Status status = Apply(sequence, frame);
  sequence.clock.Charge(&sequence.times.reconstruct);
  if (!status.ok()) {
    ++counters_->frames_rejected;
    // Of duplicates the first received stays.
    return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
  }
  ++counters_->frames_applied;
  if (sequence.landing->ledger.complete()) {
    sequence.landing.reset();
    blocks_->Landed(sequence);
  }
  return absl::OkStatus();
}

absl::Status EngineIntake::Apply(Sequence& sequence, const PendingFrame& frame) {
  Landing& landing = *sequence.landing;
  ALUDEL_RETURN_IF_ERROR(VerifyFrame(frame.header_bytes, frame.payload));
  if (frame.header.kind != landing.codec->kind()) {
    return absl::DataLossError(absl::StrFormat("frame kind is %d, the ticket's format %s has %d",
                                               static_cast<int>(frame.header.kind), landing.codec->name(),
                                               static_cast<int>(landing.codec->kind())));
  }
  ALUDEL_RETURN_IF_ERROR(landing.ledger.Add(frame.header.coverage));
  return landing.decoder->Apply(frame.header.coverage, frame.payload, Target(sequence));
}

void EngineIntake::ReleaseAll() {
  for (PendingFrame& frame : frames_) frame.release();
  frames_.clear();
}

}  // namespace aludel
