#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/store/flights.h"
#include "server/store/prefix_store.h"

namespace aludel {

// Makes chunks of a prompt's frames, which come in the order that they were encoded in, and stores each with its last
// frame. From the first chunk on that the store does not take, or whose frames do not make a whole, it keeps none. Not
// thread-safe.
class ChunkKeeper {
 public:
  struct Spec {
    PrefixStore* store = nullptr;  // null: nothing is kept
    const CodecSpec* codec = nullptr;
    absl::Span<const int32_t> prompt;
    StorePosition begin;  // of the frames
    std::unique_ptr<Flights::Flight> flight = nullptr;
  };

  // What `spec` refers to must outlive the keeper.
  explicit ChunkKeeper(Spec spec)
      : spec_(std::move(spec)), keeps_(spec_.store != nullptr && spec_.store->enabled()) {}

  void Add(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);
  // Nothing more comes: those who wait for it need not any longer.
  void End() { spec_.flight = nullptr; }
  // False: from here on nothing is kept.
  bool keeps() const { return keeps_; }
  // Of what is stored, as far as this knows; once nothing more comes.
  const StorePosition& end() const { return spec_.begin; }

 private:
  bool Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);

  Spec spec_;
  bool keeps_;
  // Of the chunk that is coming:
  int64_t end_ = 0;
  std::optional<FrameLedger> ledger_;
  std::vector<StoredFrame> frames_;
  size_t bytes_ = 0;
};

}  // namespace aludel
