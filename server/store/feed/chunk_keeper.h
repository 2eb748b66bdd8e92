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
// frame. Where the chunk in front of the first one may not be in the store yet, they wait here for it. From the first
// chunk on that the store does not take, that finds no room to wait, or whose frames do not make a whole, it keeps none.
// Not thread-safe.
class ChunkKeeper {
 public:
  // Of the chunks that wait for the one in front, those that come.
  static constexpr size_t kMaxWaitingBytes = 64 << 20;

  struct Spec {
    PrefixStore* store = nullptr;  // null: nothing is kept
    const CodecSpec* codec = nullptr;
    absl::Span<const int32_t> prompt;
    StorePosition begin;  // of the frames
    std::shared_ptr<Flights::Flight> flight = nullptr;
    bool waits = false;  // nothing is stored before SetFront
    size_t max_waiting_bytes = kMaxWaitingBytes;
  };

  // What `spec` refers to must outlive the keeper.
  explicit ChunkKeeper(Spec spec)
      : spec_(std::move(spec)), keeps_(spec_.store != nullptr && spec_.store->enabled()) {}

  void Add(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);
  // What stands in front of the first frame is in the store, as far as it will ever be: what waits is stored behind it,
  // or where it ends before the first frame, not at all.
  void SetFront(const StorePosition& front);
  // Nothing more comes: those who wait for it need not any longer.
  void End() { spec_.flight = nullptr; }
  // False: from here on nothing is kept.
  bool keeps() const { return keeps_; }
  // Of what is stored, as far as this knows; once nothing more comes.
  const StorePosition& end() const { return spec_.begin; }

 private:
  struct Waiting {
    int64_t end = 0;  // of the chunk's tokens
    std::vector<StoredFrame> frames;
  };

  bool Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);
  bool Put(int64_t end, std::vector<StoredFrame> frames);
  void KeepNoMore();

  Spec spec_;
  bool keeps_;
  std::vector<Waiting> waiting_;  // for SetFront
  size_t waiting_bytes_ = 0;
  // Of the chunk that is coming:
  int64_t end_ = 0;
  std::optional<FrameLedger> ledger_;
  std::vector<StoredFrame> frames_;
  size_t bytes_ = 0;
};

}  // namespace aludel
