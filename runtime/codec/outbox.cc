#include "runtime/codec/outbox.h"

#include <chrono>

#include "kernels/check.h"
#include "kernels/device_health.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<FrameOutbox>> FrameOutbox::Create(const Transformer& model, size_t max_bytes) {
  ALUDEL_ASSIGN_OR_RETURN(Buffer wire, model.device()->Allocate(max_bytes));
  return std::unique_ptr<FrameOutbox>(new FrameOutbox(model, std::move(wire)));
}

FrameOutbox::FrameOutbox(const Transformer& model, Buffer wire)
    : model_(model), marks_(dynamic_cast<StreamMarks*>(model.device())), wire_(std::move(wire)) {}

FrameOutbox::~FrameOutbox() {
  // The copy stream's order makes it the last of all.
  if (!leaving_.empty() && leaving_.back().copied != nullptr) leaving_.back().copied->Await();
}

uint8_t* FrameOutbox::Next() {
  if (!leaving_.empty() && marks_ != nullptr) marks_->Follow(model_.stream(), *leaving_.back().copied);
  return wire_.as<uint8_t>();
}

absl::Status FrameOutbox::Add(const FrameCoverage& coverage, size_t bytes, bool last, FrameSink& sink,
                              Check check) {
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink.Reserve(bytes));
  return Send({coverage, payload.subspan(0, bytes), std::move(check)}, last, sink);
}

absl::Status FrameOutbox::Add(const FrameCoverage& coverage, size_t bytes, Coding coding, bool last,
                              FrameSink& sink) {
  while (leaving_.size() >= kStaged) ALUDEL_RETURN_IF_ERROR(ShipFirst(sink));
  std::vector<uint8_t>& staged = staged_[next_staged_];
  if (marks_ != nullptr)
    next_staged_ = (next_staged_ + 1) % kStaged;  // else it has been shipped by the next one
  staged.resize(bytes);
  return Send({coverage, absl::MakeSpan(staged), nullptr, std::move(coding)}, last, sink);
}

absl::Status FrameOutbox::Send(Leaving leaving, bool last, FrameSink& sink) {
  ALUDEL_CHECK(leaving.bytes.size() <= wire_.size());
  Device& device = *model_.device();
  device.Follow(model_.copy_stream(), model_.stream());
  device.CopyToHost(leaving.bytes.data(), wire_.data(), leaving.bytes.size(), model_.copy_stream());
  if (marks_ != nullptr) leaving.copied = marks_->MarkOf(model_.copy_stream());
  leaving_.push_back(std::move(leaving));
  ALUDEL_RETURN_IF_ERROR(Enqueued(device, model_.copy_stream()));
  if (!last) return Poll(sink);
  while (!leaving_.empty()) ALUDEL_RETURN_IF_ERROR(ShipFirst(sink));
  return absl::OkStatus();
}

absl::Status FrameOutbox::Poll(FrameSink& sink) {
  while (!leaving_.empty() && (leaving_.front().copied == nullptr || leaving_.front().copied->Passed())) {
    ALUDEL_RETURN_IF_ERROR(ShipFirst(sink));
  }
  return absl::OkStatus();
}

absl::Status FrameOutbox::ShipFirst(FrameSink& sink) {
  const Leaving leaving = std::move(leaving_.front());
  leaving_.pop_front();
  if (leaving.copied != nullptr) {
    const auto begin = std::chrono::steady_clock::now();
    leaving.copied->Await();
    sink.Waited(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    // Then a mark counts as passed, and the copy may never have run.
    ALUDEL_RETURN_IF_ERROR(LostDevice());
  }
  if (leaving.check != nullptr) ALUDEL_RETURN_IF_ERROR(leaving.check(leaving.bytes));
  if (!leaving.coding.has_value()) return sink.Commit(leaving.coverage, leaving.bytes.size());
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink.Reserve(leaving.coding->max_bytes));
  return sink.Commit(leaving.coverage, leaving.coding->code(leaving.bytes, payload));
}

}  // namespace aludel
