#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "runtime/codec/codec.h"

namespace aludel {

// Feeds an encoder from the forward pass and keeps its time apart from the forward's. Belongs to one
// sequence; engine thread only.
//
// Its time is the host's. On a device, encoding runs in the stream of the forward pass, and its work there
// and the wait for it count as the forward's.
class EncodingObserver final : public LayerObserver {
 public:
  // Tokens before `token_begin` are not encoded. `sink` must outlive the observer.
  EncodingObserver(int64_t token_begin, std::unique_ptr<KvEncoder> encoder, FrameSink* sink);

  absl::Status OnLayer(const LayerSlice& slice) override;
  TensorView KvRows(int layer) override { return encoder_->KvRows(layer); }
  // Where encoding goes on. Tokens before it may be computed again.
  int64_t token_begin() const { return token_begin_; }
  void Encoded(int64_t token_end) { token_begin_ = std::max(token_begin_, token_end); }
  // Seconds inside the encoder since the last call, less those that it waited for the device.
  double TakeSeconds();

 private:
  // Passes frames on.
  class WaitClock : public FrameSink {
   public:
    explicit WaitClock(FrameSink* sink) : sink_(sink) {}
    absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
      return sink_->Reserve(max_bytes);
    }
    absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
      return sink_->Commit(coverage, bytes);
    }
    void Waited(double seconds) override { waited += seconds; }

    double waited = 0;

   private:
    FrameSink* const sink_;
  };

  int64_t token_begin_;
  std::unique_ptr<KvEncoder> encoder_;
  WaitClock sink_;
  double seconds_ = 0;
};

}  // namespace aludel
