#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check.h"
#include "kernels/cuda/recording.h"
#include "kernels/device.h"
#include "kernels/replay_stats.h"

namespace aludel::cuda {

// What GraphReplay asks of CUDA. Errors are not the stream's: the caller then enqueues the work without a graph.
class GraphBackend {
 public:
  using Graph = void*;

  virtual ~GraphBackend() = default;
  // Pinned memory [Recording::kArenaBytes].
  virtual char* arena() = 0;
  // Waits until the arena may be written: the last copy of it has been made.
  virtual absl::Status AwaitArena() = 0;
  // What is enqueued between the two becomes a graph, and does not run. EndCapture follows every BeginCapture
  // that succeeded.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<Graph> EndCapture() = 0;
  // Enqueues a copy of the arena's first bytes to its twin on the device, and the graph.
  virtual absl::Status Launch(Graph graph, size_t arena_bytes) = 0;
  // After the graph's last launch has run.
  virtual void Destroy(Graph graph) = 0;
};

// Positions of repeated work, rounded up: a sequence that grows stays with one graph for long. Steps may be
// coarse, as all that a launch has for positions that are not there are blocks that end at once.
inline int64_t PositionBucket(int64_t positions) {
  constexpr int64_t kLeast = 512, kGrowth = 8;
  int64_t bucket = kLeast;
  while (bucket < positions) bucket *= kGrowth;
  return bucket;
}

// The repeated work of one stream (Device::Replay), with a graph for each key and bucket of positions: the
// first time work is enqueued call by call, which also loads its kernels; the second time it is captured;
// from then on the calls are made without launches, are compared with those that were captured, and the graph
// runs. Whatever goes wrong on that way ends with the work enqueued call by call. Belongs to its stream's thread.
//
// At most kMostGraphs graphs: one that is captured takes the place of the least recently used, and keys that
// were met once do not count. Work whose graph could not be made, or that has changed under its key
// kMostChanges times, stays eager until it is forgotten.
class GraphReplay {
 public:
  // Batches of 11 sizes (1, 2, 4, ..., 512, and the most rows whose layers are fused), with tokens drawn and without, in four
  // buckets (262,144 positions).
  static constexpr size_t kMostGraphs = 128;
  static constexpr size_t kMostSeen = 128;
  static constexpr int kMostChanges = 3;

  using OpenBackend = std::function<absl::StatusOr<std::unique_ptr<GraphBackend>>()>;

  // `open` is called when there is something to capture; null: all work is eager.
  explicit GraphReplay(OpenBackend open) : open_(std::move(open)) {}
  ~GraphReplay() { Close(); }
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;

  void Run(const ReplayKey& key, absl::FunctionRef<void()> work);
  // Forgets all graphs, and the backend.
  void Close();

  // For what `work` calls. In Run, the position before which all its sequences end; else 0.
  int64_t positions() const { return positions_; }
  // Not null: host arrays belong there, and errors break it.
  Recording* pass() { return pass_; }
  bool capturing() const { return capturing_; }
  // Whether the caller shall make this launch, into the capture where there is one.
  bool Launches(uint64_t digest);

  const ReplayStats& stats() const { return stats_; }

 private:
  struct Entry {
    uint64_t calls;
    int64_t positions;
    bool eager = false;  // for good
    int changes = 0;
    std::optional<Recording> recording = {};
    GraphBackend::Graph graph = nullptr;
  };

  // Null where these are met for the first time.
  Entry* Find(uint64_t calls, int64_t positions);
  bool Seen(uint64_t calls, int64_t positions);
  // Whether the work is enqueued.
  bool Replay(Entry& entry, absl::FunctionRef<void()> work);
  bool Capture(Entry& entry, absl::FunctionRef<void()> work);
  bool Launch(Entry& entry);
  bool Pass(Recording& recording, absl::FunctionRef<void()> work);
  bool StaysEager(Entry& entry, absl::string_view reason);
  void Drop(Entry& entry);

  const OpenBackend open_;
  std::unique_ptr<GraphBackend> backend_;
  std::list<Entry> entries_;                       // most recently used first
  std::deque<std::pair<uint64_t, int64_t>> seen_;  // once, latest last: calls and positions
  int64_t positions_ = 0;
  Recording* pass_ = nullptr;
  bool capturing_ = false;
  ReplayStats stats_;
};

inline void GraphReplay::Close() {
  for (Entry& entry : entries_) Drop(entry);
  entries_.clear();
  seen_.clear();
  backend_.reset();
}

inline bool GraphReplay::Launches(uint64_t digest) {
  if (pass_ == nullptr) return true;
  pass_->Launch(digest);
  return capturing_ && !pass_->broken();
}

inline void GraphReplay::Run(const ReplayKey& key, absl::FunctionRef<void()> work) {
  ALUDEL_CHECK(positions_ == 0);  // repeated work repeats nothing itself
  positions_ = PositionBucket(key.positions);
  bool done = false;
  if (open_ != nullptr) {
    Entry* const entry = Find(key.calls, positions_);
    if (entry != nullptr && !entry->eager) {
      done = entry->graph != nullptr ? Replay(*entry, work) : Capture(*entry, work);
    }
  }
  if (!done) {
    ++stats_.eager;
    work();
  }
  positions_ = 0;
}

inline GraphReplay::Entry* GraphReplay::Find(uint64_t calls, int64_t positions) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.calls == calls && entry.positions == positions;
  });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return &entries_.front();
  }
  if (!Seen(calls, positions)) return nullptr;
  if (entries_.size() == kMostGraphs) {
    Drop(entries_.back());
    entries_.pop_back();
  }
  return &entries_.emplace_front(Entry{calls, positions});
}

// Whether they were met once before, which is then forgotten; else notes them.
inline bool GraphReplay::Seen(uint64_t calls, int64_t positions) {
  const std::pair key(calls, positions);
  const auto found = std::find(seen_.begin(), seen_.end(), key);
  if (found != seen_.end()) {
    seen_.erase(found);
    return true;
  }
  if (seen_.size() == kMostSeen) seen_.pop_front();
  seen_.push_back(key);
  return false;
}

inline void GraphReplay::Drop(Entry& entry) {
  if (entry.graph != nullptr) backend_->Destroy(entry.graph);
  entry.graph = nullptr;
}

inline bool GraphReplay::StaysEager(Entry& entry, absl::string_view reason) {
  stats_.reason = std::string(reason);
  entry.eager = true;
  Drop(entry);
  return false;
}

inline bool GraphReplay::Pass(Recording& recording, absl::FunctionRef<void()> work) {
  recording.Begin();
  pass_ = &recording;
  work();
  pass_ = nullptr;
  return recording.End();
}

inline bool GraphReplay::Capture(Entry& entry, absl::FunctionRef<void()> work) {
  if (backend_ == nullptr) {
    absl::StatusOr<std::unique_ptr<GraphBackend>> backend = open_();
    if (!backend.ok()) return StaysEager(entry, backend.status().message());
    backend_ = *std::move(backend);
  }
  absl::Status begun = backend_->AwaitArena();
  if (begun.ok()) begun = backend_->BeginCapture();
  if (!begun.ok()) return StaysEager(entry, begun.message());
  entry.recording.emplace(backend_->arena());
  capturing_ = true;
  const bool whole = Pass(*entry.recording, work);
  capturing_ = false;
  const absl::StatusOr<GraphBackend::Graph> graph = backend_->EndCapture();
  if (graph.ok()) entry.graph = *graph;
  if (!whole) return StaysEager(entry, entry.recording->reason());
  if (!graph.ok()) return StaysEager(entry, graph.status().message());
  if (!Launch(entry)) return false;
  ++stats_.captured;
  return true;
}

inline bool GraphReplay::Replay(Entry& entry, absl::FunctionRef<void()> work) {
  if (const absl::Status free = backend_->AwaitArena(); !free.ok()) return StaysEager(entry, free.message());
  if (!Pass(*entry.recording, work)) {
    ++stats_.changed;
    if (++entry.changes == kMostChanges) return StaysEager(entry, entry.recording->reason());
    Drop(entry);
    return false;
  }
  if (!Launch(entry)) return false;
  ++stats_.replayed;
  return true;
}

inline bool GraphReplay::Launch(Entry& entry) {
  const absl::Status status = backend_->Launch(entry.graph, entry.recording->used());
  return status.ok() || StaysEager(entry, status.message());
}

}  // namespace aludel::cuda
