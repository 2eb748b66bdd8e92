#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

namespace aludel::cuda {

// What a graph was captured from: a digest of all that each launch was given, and where each host array lies
// in the arena, memory at one address whose bytes go to the device before every launch of the graph. The
// first pass over the calls writes this down; later passes make none of the launches, fill the arena again,
// and are held against it. A pass that departs from the first is broken, and nothing of it may reach the device.
//
// The arena's front holds arrays of one size each, in the order in which the first pass named them, equal
// ones once. Behind it lies the one array whose size may differ from pass to pass, the table of sequences.
class Recording {
 public:
  static constexpr size_t kArenaBytes = size_t{4} << 20;  // a million block ids, about
  static constexpr size_t kFrontBytes = size_t{64} << 10;

  // `arena` [kArenaBytes] outlives this.
  explicit Recording(char* arena) : arena_(arena) {}

  void Begin();
  // Whether what the pass stands for may run: nothing broke it, and nothing is missing.
  bool End();

  void Launch(uint64_t digest);
  // Where in the arena a copy of the bytes lies. Nothing once the pass is broken.
  std::optional<size_t> Stage(const void* host, size_t bytes);
  // As Stage, for the table that `write` makes from what lies at `of`, which stays as it is during a pass: a pass
  // writes it once.
  std::optional<size_t> StageTable(const void* of, size_t bytes, absl::FunctionRef<void(char*)> write);

  void Break(std::string reason);
  bool broken() const { return broken_; }
  const std::string& reason() const { return reason_; }  // of the last pass that broke

  // Of the arena, from its start, that the pass has filled.
  size_t used() const { return table_bytes_ > 0 ? kFrontBytes + table_bytes_ : front_used_; }

 private:
  struct Array {
    size_t offset;
    size_t bytes;
    bool written;  // in this pass
  };

  size_t RecordArray(const void* host, size_t bytes);

  char* const arena_;
  bool recorded_ = false;
  std::vector<uint64_t> launches_;
  std::vector<Array> arrays_;
  std::vector<size_t> staged_;  // the array of each call of Stage
  size_t front_used_ = 0;

  // Of this pass.
  size_t next_launch_ = 0;
  size_t next_staged_ = 0;
  const void* table_of_ = nullptr;
  size_t table_bytes_ = 0;
  bool broken_ = false;
  std::string reason_;
};

inline void Recording::Begin() {
  next_launch_ = next_staged_ = 0;
  table_of_ = nullptr;
  table_bytes_ = 0;
  broken_ = false;
  for (Array& array : arrays_) array.written = false;
}

inline bool Recording::End() {
  if (!broken_ && recorded_ && (next_launch_ != launches_.size() || next_staged_ != staged_.size())) {
    Break(absl::StrCat("it ended after launch ", next_launch_, " of ", launches_.size()));
  }
  recorded_ = recorded_ || !broken_;
  return !broken_;
}

inline void Recording::Break(std::string reason) {
  if (!broken_) reason_ = std::move(reason);
  broken_ = true;
}

inline void Recording::Launch(uint64_t digest) {
  if (!recorded_) return launches_.push_back(digest);
  if (broken_) return;
  if (next_launch_ == launches_.size() || launches_[next_launch_] != digest) {
    return Break(absl::StrCat("launch ", next_launch_, " was given something else than before"));
  }
  ++next_launch_;
}

inline size_t Recording::RecordArray(const void* host, size_t bytes) {
  for (size_t i = 0; i < arrays_.size(); ++i) {
    if (arrays_[i].bytes == bytes && std::memcmp(arena_ + arrays_[i].offset, host, bytes) == 0) return i;
  }
  constexpr size_t kAlignment = 16;
  if (bytes > kFrontBytes - front_used_) {
    Break(absl::StrCat("its arrays take more than the arena's ", kFrontBytes, " bytes"));
    return 0;
  }
  arrays_.push_back({front_used_, bytes, /*written=*/false});
  front_used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return arrays_.size() - 1;
}

inline std::optional<size_t> Recording::Stage(const void* host, size_t bytes) {
  if (broken_) return std::nullopt;
  if (!recorded_) {
    staged_.push_back(RecordArray(host, bytes));
    if (broken_) return std::nullopt;
  }
  if (next_staged_ == staged_.size() || arrays_[staged_[next_staged_]].bytes != bytes) {
    Break(absl::StrCat("host array ", next_staged_, " has another size than before"));
    return std::nullopt;
  }
  Array& array = arrays_[staged_[next_staged_]];
  char* const to = arena_ + array.offset;
  if (!array.written) {
    std::memcpy(to, host, bytes);
    array.written = true;
  } else if (std::memcmp(to, host, bytes) != 0) {
    // Two arrays that were equal by chance when they were recorded.
    Break(absl::StrCat("host array ", next_staged_, " no longer equals one before it"));
    return std::nullopt;
  }
  ++next_staged_;
  return array.offset;
}

inline std::optional<size_t> Recording::StageTable(const void* of, size_t bytes,
                                                   absl::FunctionRef<void(char*)> write) {
  if (broken_) return std::nullopt;
  if (table_of_ == nullptr) {
    if (bytes > kArenaBytes - kFrontBytes) {
      Break(absl::StrCat("its table takes ", bytes, " bytes, the arena has ", kArenaBytes - kFrontBytes));
      return std::nullopt;
    }
    write(arena_ + kFrontBytes);
    table_of_ = of;
    table_bytes_ = bytes;
  } else if (table_of_ != of || table_bytes_ != bytes) {
    Break("it has more than one table of sequences");
    return std::nullopt;
  }
  return kFrontBytes;
}

}  // namespace aludel::cuda
