#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "runtime/codec/codec.h"

namespace aludel {

// Feeds an encoder from the forward pass and keeps its time apart from the forward's. Belongs to one
// sequence; engine thread only.
class EncodingObserver final : public LayerObserver {
 public:
  // Tokens before `token_begin` are not encoded. `sink` must outlive the observer.
  EncodingObserver(int64_t token_begin, std::unique_ptr<KvEncoder> encoder, FrameSink* sink);

  absl::Status OnLayer(const LayerSlice& slice) override;
  // Where encoding goes on. Tokens before it may be computed again.
  int64_t token_begin() const { return token_begin_; }
  void Encoded(int64_t token_end) { token_begin_ = std::max(token_begin_, token_end); }
  // Seconds inside the encoder since the last call.
  double TakeSeconds();

 private:
  int64_t token_begin_;
  std::unique_ptr<KvEncoder> encoder_;
  FrameSink* const sink_;
  double seconds_ = 0;
};

}  // namespace aludel
