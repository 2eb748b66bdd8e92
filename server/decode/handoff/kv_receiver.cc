#include "server/decode/handoff/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/codec/frame.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// A grant is a message, so one is sent for each of this many parts of the credit.
constexpr uint64_t kGrantParts = 4;

}  // namespace

void KvReceiver::Ticket::Release(const uint8_t* place) {
  uint64_t credit = 0;
  {
    absl::MutexLock lock(&ring_mutex);
    ring.Return(place);
    if (!spec.credit || ring.returned() - granted < *spec.credit / kGrantParts) return;
    granted = ring.returned();
    credit = *spec.credit + granted;
  }
  if (const auto owner = spec.owner.lock()) owner->OnCreditRaised(spec.id, credit);
}

KvReceiver::KvReceiver(uint64_t epoch, Metrics* metrics, Clock clock)
    : epoch_(epoch),
      handoffs_(metrics),
      dropped_(metrics->Counter("aludel_frames_dropped_total", "Frames refused, by reason.")),
      ended_tickets_(metrics->Counter("aludel_tickets_total", "Tickets that have ended, by how.")),
      clock_(std::move(clock)) {
  for (uint8_t drop = 0; drop < kFrameDrops; ++drop) {
    CountDrop(static_cast<FrameDrop>(drop), 0);  // so that an alert sees the first one
  }
}

void KvReceiver::CountDrop(FrameDrop drop, int frames) { dropped_.Add({{"reason", Name(drop)}}, frames); }

void KvReceiver::Open(TicketSpec spec) {
  auto ticket = std::make_shared<Ticket>(std::move(spec));
  ticket->artifact = ArtifactPrefix(ticket->spec.codec->artifact_hash);
  absl::MutexLock lock(&mutex_);
  const TicketId id = ticket->spec.id;
  tickets_.emplace(id, std::move(ticket));
}

void KvReceiver::CloseLocked(Ticket& ticket, TicketState end) {
  ticket.state = end;
  ended_tickets_.Add({{"end", Name(end)}});
  tickets_.erase(ticket.spec.id);
}

void KvReceiver::TellLost(const Ticket& ticket, const absl::Status& reason) {
  if (const auto owner = ticket.spec.owner.lock()) owner->OnTicketLost(ticket.spec.id, reason);
}

std::optional<KvReceiver::Usage> KvReceiver::UsageOf(const TicketId& id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = tickets_.find(id);
  if (found == tickets_.end()) return std::nullopt;
  return found->second->usage;
}

std::optional<KvReceiver::Arrivals> KvReceiver::ArrivalsOf(const TicketId& id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = tickets_.find(id);
  if (found == tickets_.end()) return std::nullopt;
  const Ticket& ticket = *found->second;
  return Arrivals{ticket.usage.frames, ticket.sequences.size() > ticket.usage.frames};
}

KvReceiver::Usage KvReceiver::Close(const TicketId& id, TicketState end) {
  std::shared_ptr<Ticket> ticket;  // destroyed after the lock: its memory goes back to the arena
  absl::MutexLock lock(&mutex_);
  const auto found = tickets_.find(id);
  if (found == tickets_.end()) return {};
  ticket = found->second;
  CloseLocked(*ticket, end);
  return ticket->usage;
}

void KvReceiver::Reap() {
  const absl::Time now = clock_();
  std::vector<std::shared_ptr<Ticket>> expired;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, ticket] : tickets_) {
      if (ticket->spec.deadline <= now) expired.push_back(ticket);
    }
    for (const auto& ticket : expired) CloseLocked(*ticket, TicketState::kExpired);
  }
  for (const auto& ticket : expired) {
    TellLost(*ticket,
             absl::DeadlineExceededError(absl::StrFormat(
                 "the handoff did not complete in time (%d frames had arrived)", ticket->usage.frames)));
  }
}

int64_t KvReceiver::open_tickets() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(tickets_.size());
}

int64_t KvReceiver::unfinished_payloads() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(incoming_.size());
}

KvReceiver::Verdict KvReceiver::Judge(const FrameHeader& header, size_t payload_bytes) {
  // Until the ticket is known any peer may have sent it: no handoff ends because of such a frame.
  if (header.epoch != epoch_) return {nullptr, FrameDrop::kEpoch, {}};
  const auto found = tickets_.find(header.ticket);
  if (found == tickets_.end()) return {nullptr, FrameDrop::kUnknownTicket, {}};
  const std::shared_ptr<Ticket>& ticket = found->second;
  const TicketSpec& spec = ticket->spec;
  if (clock_() >= spec.deadline) return {nullptr, FrameDrop::kLate, {}};  // Reap tells the owner
  if (ticket->sequences.count(header.sequence) != 0) return {nullptr, FrameDrop::kDuplicate, {}};

  const auto lose = [&](FrameDrop drop, const std::string& text) {
    return Verdict{ticket, drop, absl::DataLossError(text)};
  };
  if (header.payload_bytes != payload_bytes || payload_bytes == 0) {
    return lose(FrameDrop::kLength, absl::StrFormat("frame %d: payload is %d bytes, its header says %d",
                                                    header.sequence, payload_bytes, header.payload_bytes));
  }
  if (header.kind != spec.codec->kind || header.artifact != ticket->artifact) {
    return lose(FrameDrop::kFormat,
                absl::StrFormat("frame %d: kind %d or its artifact is not the ticket's format %s",
                                header.sequence, static_cast<int>(header.kind), spec.codec->name));
  }
  const uint64_t token_end = uint64_t{header.coverage.token_begin} + header.coverage.tokens;
  if (header.coverage.tokens == 0 || token_end > spec.tokens) {
    return lose(FrameDrop::kCoverage,
                absl::StrFormat("frame %d: tokens [%d, %d), the ticket has %d", header.sequence,
                                header.coverage.token_begin, token_end, spec.tokens));
  }
  const size_t limit = spec.codec->max_frame_bytes(header.coverage.tokens) +
                       (spec.cipher == nullptr ? 0 : FrameCipher::kTagBytes);
  if (payload_bytes > limit) {
    return lose(FrameDrop::kOversize,
                absl::StrFormat("frame %d: payload is %d bytes, want at most %d for %d tokens",
                                header.sequence, payload_bytes, limit, header.coverage.tokens));
  }
  if (spec.credit && header.sequence != ticket->sequences.size()) {
    return lose(FrameDrop::kGap, absl::StrFormat("frame %d has come, frame %d is missing", header.sequence,
                                                 ticket->sequences.size()));
  }
  absl::MutexLock lock(&ticket->ring_mutex);
  const auto place = ticket->ring.Take(payload_bytes);
  if (!place) {
    return lose(FrameDrop::kArena,
                absl::StrFormat("frame %d: payload is %d bytes, the ticket's memory of %d holds %d",
                                header.sequence, payload_bytes, ticket->ring.size(), ticket->ring.held()));
  }
  return {ticket, std::nullopt, {}, *place};
}

absl::Span<uint8_t> KvReceiver::OnHeader(MessageId id, absl::Span<const uint8_t> bytes,
                                         size_t payload_bytes) {
  const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) {
    CountDrop(FrameDrop::kMalformed);
    return {};
  }
  Verdict verdict;
  {
    absl::MutexLock lock(&mutex_);
    verdict = Judge(*header, payload_bytes);
    if (!verdict.drop) {
      verdict.ticket->sequences.insert(header->sequence);
      incoming_[id] = {verdict.ticket, *header, {bytes.begin(), bytes.end()}, verdict.place};
      return verdict.place;
    }
    if (verdict.ticket != nullptr) CloseLocked(*verdict.ticket, TicketState::kRefused);
  }
  CountDrop(*verdict.drop);
  if (verdict.ticket != nullptr) TellLost(*verdict.ticket, verdict.lost);
  return {};
}

absl::Status KvReceiver::Decrypt(const FrameCipher& cipher, Incoming& frame) {
  ALUDEL_RETURN_IF_ERROR(
      cipher.Open(frame.header.sequence, EncodeFrameHeader(frame.header, {}), frame.payload));
  frame.payload = frame.payload.subspan(0, frame.payload.size() - FrameCipher::kTagBytes);
  frame.header.payload_bytes = static_cast<uint32_t>(frame.payload.size());
  const auto header = EncodeFrameHeader(frame.header, frame.payload);
  frame.header_bytes.assign(header.begin(), header.end());
  return absl::OkStatus();
}

void KvReceiver::CountReceived(const Incoming& frame, Usage* usage) const {
  const uint64_t bytes = frame.header_bytes.size() + frame.payload.size();
  ++usage->frames;
  if (frame.header.coverage.plane > 0) {
    usage->upgrade_bytes += bytes;
    return;
  }
  usage->last_received = clock_();
  if (usage->bytes == 0) {
    usage->first_received = usage->last_received;
    usage->first_bytes = bytes;
  }
  usage->bytes += bytes;
}

void KvReceiver::OnPayload(MessageId id, absl::Status status) {
  Incoming* frame = nullptr;
  bool closed = false;
  FrameDrop drop = FrameDrop::kTransfer;
  TicketState lost = TicketState::kFailed;
  {
    absl::MutexLock lock(&mutex_);
    frame = &incoming_.at(id);  // stable: a map's elements do not move, and only this thread uses this one
  }
  if (const auto& cipher = frame->ticket->spec.cipher; cipher != nullptr && status.ok()) {
    status = Decrypt(*cipher, *frame);
    drop = FrameDrop::kTampered;
    lost = TicketState::kRefused;
  }
  {
    absl::MutexLock lock(&mutex_);
    Ticket& ticket = *frame->ticket;
    closed = ticket.state != TicketState::kOpen;
    if (!closed && status.ok()) {
      CountReceived(*frame, &ticket.usage);
    } else if (!closed) {
      CloseLocked(ticket, lost);
    }
  }
  Deliver(*frame, closed, drop, status);
  Incoming delivered;  // destroyed after the lock: may be the last holder of the ticket
  absl::MutexLock lock(&mutex_);
  const auto found = incoming_.find(id);
  delivered = std::move(found->second);
  incoming_.erase(found);
}

void KvReceiver::Deliver(Incoming& frame, bool closed, FrameDrop drop, const absl::Status& status) {
  if (closed) {
    CountDrop(FrameDrop::kLate);
    return;
  }
  if (!status.ok()) {
    CountDrop(drop);
    TellLost(*frame.ticket, status);
    return;
  }
  handoffs_.CountFrame("received", frame.ticket->spec.codec->name,
                       frame.header_bytes.size() + frame.payload.size());
  const std::shared_ptr<TicketOwner> owner = frame.ticket->spec.owner.lock();
  if (owner == nullptr) return frame.ticket->Release(frame.payload.data());
  owner->OnFrameReceived(frame.header, std::move(frame.header_bytes), frame.payload,
                         [quarantine = frame.ticket, place = frame.payload.data()]() mutable {
                           quarantine->Release(place);
                           quarantine.reset();
                         });
}

}  // namespace aludel
