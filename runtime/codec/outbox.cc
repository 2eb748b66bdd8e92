#include "runtime/codec/outbox.h"

#include <chrono>
#include <utility>

#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<FrameOutbox>> FrameOutbox::Create(const Transformer& model, size_t max_bytes) {
  ALUDEL_ASSIGN_OR_RETURN(Buffer wire, model.device()->Allocate(max_bytes));
  return std::unique_ptr<FrameOutbox>(new FrameOutbox(model, std::move(wire)));
}

FrameOutbox::~FrameOutbox() {
  // A failure is one of the device, which the next forward pass meets, too.
  if (leaving_.has_value()) model_.device()->Synchronize(model_.copy_stream()).IgnoreError();
}

absl::StatusOr<uint8_t*> FrameOutbox::Next(FrameSink& sink) {
  ALUDEL_RETURN_IF_ERROR(Ship(sink));
  return wire_.as<uint8_t>();
}

absl::Status FrameOutbox::Add(const FrameCoverage& coverage, size_t bytes, bool last, FrameSink& sink,
                              Check check) {
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink.Reserve(bytes));
  return Send({coverage, payload.subspan(0, bytes), std::move(check), std::nullopt}, last, sink);
}

absl::Status FrameOutbox::Add(const FrameCoverage& coverage, size_t bytes, Coding coding, bool last,
                              FrameSink& sink) {
  staged_.resize(bytes);
  return Send({coverage, absl::MakeSpan(staged_), nullptr, std::move(coding)}, last, sink);
}

absl::Status FrameOutbox::Send(Leaving leaving, bool last, FrameSink& sink) {
  ALUDEL_CHECK(!leaving_.has_value() && leaving.bytes.size() <= wire_.size());
  Device& device = *model_.device();
  device.Follow(model_.copy_stream(), model_.stream());
  device.CopyToHost(leaving.bytes.data(), wire_.data(), leaving.bytes.size(), model_.copy_stream());
  leaving_ = std::move(leaving);
  return last ? Ship(sink) : Poll(sink);
}

absl::Status FrameOutbox::Poll(FrameSink& sink) {
  if (!leaving_.has_value() || !model_.device()->Finished(model_.copy_stream())) return absl::OkStatus();
  return Ship(sink);
}

absl::Status FrameOutbox::Ship(FrameSink& sink) {
  if (!leaving_.has_value()) return absl::OkStatus();
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status copied = model_.device()->Synchronize(model_.copy_stream());
  sink.Waited(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  const Leaving leaving = *std::exchange(leaving_, std::nullopt);
  ALUDEL_RETURN_IF_ERROR(copied);
  if (leaving.check != nullptr) ALUDEL_RETURN_IF_ERROR(leaving.check(leaving.bytes));
  if (!leaving.coding.has_value()) return sink.Commit(leaving.coverage, leaving.bytes.size());
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink.Reserve(leaving.coding->max_bytes));
  return sink.Commit(leaving.coverage, leaving.coding->code(leaving.bytes, payload));
}

}  // namespace aludel
