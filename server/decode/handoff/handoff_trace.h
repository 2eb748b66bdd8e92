#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/codec/frame.h"

namespace aludel {

// What happened to each frame of one handoff, on both sides, as a Chrome trace (Trace Event Format, which
// https://ui.perfetto.dev and chrome://tracing open). The prefill server's times count from the moment at
// which its run began, by its own clock; they are drawn from the moment at which it was called, so its rows
// may be early by as long as that call took. Thread-safe.
class HandoffTrace {
 public:
  // In a message.
  static constexpr size_t kMaxFrames = 1024;

  // An attempt begins; what an earlier one left is forgotten.
  void Begin(absl::Time now);
  void Producer(const v1::RunComputed& computed);
  void Received(const FrameHeader& header, absl::Time now);
  // Its bytes have been read: it is in the cache.
  void Applied(uint32_t sequence, absl::Time now);
  void FirstToken(absl::Time now);

  std::string ToJson(const std::string& request_id, const std::string& format) const;
  // The first kMaxFrames of them, and the first token.
  void Fill(v1::RequestTrace* trace) const;
  // The same as a file, which a reader sees whole or not at all. The error names `path`.
  absl::Status WriteTo(const std::string& path, const std::string& request_id,
                       const std::string& format) const;

 private:
  struct Frame {
    FrameCoverage coverage;
    uint32_t payload_bytes = 0;
    absl::Time received;
    absl::Time applied = absl::InfiniteFuture();
  };
  mutable absl::Mutex mutex_;
  absl::Time begin_ ABSL_GUARDED_BY(mutex_);
  absl::Time first_token_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::vector<v1::FrameTimes> producer_ ABSL_GUARDED_BY(mutex_);
  // By sequence; bounded by what the ticket lets in.
  std::map<uint32_t, Frame> frames_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
