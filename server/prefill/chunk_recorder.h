#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/store/flights.h"
#include "server/store/prefix_store.h"

namespace aludel {

// Passes an encoder's frames on to another sink, and stores each chunk as soon as its last frame is there. From the
// first chunk on that the store does not take, or whose frames do not make a whole, it keeps none. Used from one thread
// at a time, as every sink.
class ChunkRecorder : public FrameSink {
 public:
  struct Spec {
    PrefixStore* store = nullptr;  // null: nothing is kept
    const CodecSpec* codec = nullptr;
    absl::Span<const int32_t> prompt;
    StorePosition begin;  // of what is encoded
    std::unique_ptr<Flights::Flight> flight;
  };

  // What `spec` refers to must outlive the recorder.
  ChunkRecorder(std::shared_ptr<FrameSink> sink, Spec spec)
      : sink_(std::move(sink)),
        spec_(std::move(spec)),
        keeps_(spec_.store != nullptr && spec_.store->enabled()) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  // Nothing more is encoded: those who wait for it need not any longer.
  void End() { spec_.flight = nullptr; }
  // Of what is stored, as far as this knows; once nothing more is encoded.
  const StorePosition& end() const { return spec_.begin; }

 private:
  // False: from here on nothing is kept.
  bool Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);

  const std::shared_ptr<FrameSink> sink_;
  Spec spec_;
  bool keeps_;
  absl::Span<const uint8_t> reserved_;
  // Of the chunk that is being encoded:
  int64_t end_ = 0;
  std::optional<FrameLedger> ledger_;
  std::vector<StoredFrame> frames_;
  size_t bytes_ = 0;
};

}  // namespace aludel
