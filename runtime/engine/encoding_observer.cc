#include "runtime/engine/encoding_observer.h"

#include <chrono>
#include <limits>
#include <utility>

#include "runtime/codec/coverage.h"

namespace aludel {

EncodingObserver::EncodingObserver(int64_t token_begin, std::unique_ptr<KvEncoder> encoder, FrameSink* sink)
    : token_begin_(token_begin), encoder_(std::move(encoder)), sink_(sink) {}

absl::Status EncodingObserver::OnLayer(const LayerSlice& slice) {
  const auto begin = std::chrono::steady_clock::now();
  const auto part = ClipSlice(slice, token_begin_, std::numeric_limits<int64_t>::max());
  absl::Status status = part.has_value() ? encoder_->Encode(*part, sink_) : absl::OkStatus();
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return status;
}

double EncodingObserver::TakeSeconds() {
  return std::exchange(seconds_, 0.0) - std::exchange(sink_.waited, 0.0);
}

}  // namespace aludel
