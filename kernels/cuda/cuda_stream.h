#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cuda_graphs.h"
#include "kernels/cuda/graph_replay.h"
#include "kernels/cuda/launch_digest.h"
#include "kernels/cuda/return_ring.h"
#include "kernels/device_options.h"
#include "kernels/replay_stats.h"
#include "kernels/stream_marks.h"

namespace aludel::cuda {

// What a Stream of a CudaDevice points to: a CUDA stream with everything that work on it borrows, so that ops
// on different streams share nothing. Owned by the device. One thread uses it at a time, and every call
// expects its device to be current.
//
// Small host arrays (ids, row numbers, block lists) reach the GPU through Stage: a ring of pinned memory and
// its twin on the device, in segments. The device side is reused in stream order; the host side of a segment
// is written again only after the event behind its last copy. Results go the other way through pinned memory
// as well, unless theirs is: return_ring.h.
//
// Work given to Replay becomes graphs, see graph_replay.h; its host arrays go through an arena that all of
// the stream's graphs share.
class CudaStream {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLASLt asks for on Hopper
  static constexpr size_t kScratchBytes = size_t{64} << 20;    // a piece of a matrix as numbers
  static constexpr size_t kSumsBytes = size_t{32} << 20;       // of a product, before they are rounded
  static constexpr size_t kReturnBytes = size_t{16} << 20;     // logits of 32 rows of a large vocabulary
  static constexpr int64_t kCounters = 16 << 10;
  static constexpr int kSegments = 3;
  static constexpr size_t kSegmentBytes = size_t{4} << 20;  // a million block ids: one op's bound

  // `device_name` is for messages. `options`: whether Replay makes graphs, and what follows.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(const std::string& device_name,
                                                            const DeviceOptions& options);
  // Waits for the stream.
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // For copies and events; kernels go through Launch.
  cudaStream_t get() const { return stream_; }
  // Scratch of whichever op runs; kWorkspaceBytes, 256-byte aligned.
  void* workspace() const { return workspace_; }

  // Zeros before and behind each kernel that counts in them; [kCounters].
  uint32_t* counters() const { return counters_; }

  // More of it, allocated in stream order by the first op that asks and kept; kScratchBytes. Null, with the
  // error collected, where there is no memory left.
  void* Scratch() { return OnDemand(&scratch_, kScratchBytes); }
  // As above, beside it; kSumsBytes.
  void* Sums() { return OnDemand(&sums_, kSumsBytes); }

  // See Device::Replay.
  void Replay(const ReplayKey& key, absl::FunctionRef<void()> work) { replay_.Run(key, work); }
  // In Replay, the position before which every sequence ends: what is launched may depend on it, and not on
  // where they do end. Else 0.
  int64_t positions() const { return replay_.positions(); }
  const ReplayStats& replay_stats() const { return replay_.stats(); }

  // See DeviceOptions.
  bool dependent_launch() const { return dependent_launch_; }
  bool persistent_attention() const { return persistent_attention_; }

  // Whether what is enqueued runs: no graph is captured now, and no calls are compared with a graph's.
  bool runs() { return replay_.pass() == nullptr; }

  // Enqueues what `launcher(args..., stream)` does, and collects the cudaError_t that it returns. `what` and
  // `args` say all that it does: where a graph runs in its place, they are compared with the captured ones.
  template <typename Launcher, typename... Args>
  void Launch(const char* what, const Launcher& launcher, const Args&... args) {
    if (replay_.pass() != nullptr && !replay_.Launches(absl::HashOf(absl::string_view(what), args...)))
      return;
    Collect(launcher(args..., replay_.capturing() ? graphs_->capture_stream() : stream_), what);
  }

  // Device memory that holds the `bytes` at `host` when work enqueued after this call runs, until the ring
  // comes round (two segments later at the soonest): for the ops of the same call. `host` may die on return.
  // What was staged lately is recognized and not sent again: all layers of a step share their tables. Null,
  // with the error collected, where bytes exceed a segment or CUDA fails.
  const void* Stage(const void* host, size_t bytes);
  // As Stage, for `bytes` that `write` makes from what lies at `of`. In repeated work, where that stays as it
  // is, they are made once, and their number may differ from one Replay to the next.
  const void* StageTable(const void* of, size_t bytes, absl::FunctionRef<void(char*)> write);

  // Copies to host memory, which holds the bytes when Synchronize has returned OK, or a mark behind it has passed.
  void CopyToHost(void* host, const void* device, size_t bytes);

  // Remembers the first failure until Synchronize reports it. One that a graph is to blame for is not
  // reported: the work is enqueued again without.
  void Collect(absl::Status status);
  void Collect(cudaError_t error, const char* what);

  // Waits for everything enqueued; returns the first failure since the last call.
  absl::Status Synchronize();
  bool Finished();
  // What is enqueued from now on runs behind what is on `earlier` now, or behind a mark of another stream.
  void Follow(CudaStream& earlier);
  void Follow(const StreamMarks::Mark& mark);
  // See StreamMarks. Without memory for a mark, waits, and the mark has passed.
  std::unique_ptr<StreamMarks::Mark> MarkHere();
  absl::Status TakeFailure() { return std::exchange(error_, absl::OkStatus()); }

 private:
  struct Staged {
    size_t offset;  // in the ring
    size_t bytes;
  };
  static constexpr size_t kRemembered = 16;

  CudaStream(std::string device_name, const DeviceOptions& options);

  absl::Status Init();
  absl::StatusOr<std::unique_ptr<GraphBackend>> OpenGraphs();
  void* OnDemand(void** memory, size_t bytes);
  const void* InArena(std::optional<size_t> offset) const;
  void NextSegment();

  std::string device_name_;
  const bool dependent_launch_;
  const bool persistent_attention_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t here_ = nullptr;  // for Follow, recorded anew each time
  void* workspace_ = nullptr;
  uint32_t* counters_ = nullptr;
  void* scratch_ = nullptr;
  void* sums_ = nullptr;
  char* host_ring_ = nullptr;                     // pinned, [kSegments, kSegmentBytes]
  char* device_ring_ = nullptr;                   // its twin
  std::array<cudaEvent_t, kSegments> left_ = {};  // recorded when the ring moves on from the segment
  int segment_ = 0;
  size_t used_ = 0;             // bytes of the current segment
  std::vector<Staged> recent_;  // latest last, at most kRemembered, all in the current segment
  ReturnRing returns_{kReturnBytes};
  absl::Status error_;
  GraphReplay replay_;
  CudaGraphs* graphs_ = nullptr;  // replay_'s, once it has asked for it
};

}  // namespace aludel::cuda
