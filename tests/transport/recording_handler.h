#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/transport.h"

namespace aludel {

// Bytes that differ at every offset and for every seed.
std::vector<uint8_t> Pattern(size_t bytes, uint64_t seed);

// A receiver that keeps everything: headers in order of arrival, payloads with their outcome. Thread-safe.
class RecordingHandler : public MessageHandler {
 public:
  struct Received {
    std::string header;
    std::unique_ptr<uint8_t[]> data;  // left unwritten: a missing transfer shows
    size_t bytes = 0;
    bool finished = false;
    absl::Status status;
    absl::Span<const uint8_t> payload() const { return {data.get(), bytes}; }
  };

  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header, size_t payload_bytes) override;
  void OnPayload(MessageId id, absl::Status status) override;

  // Messages whose header is `header` are dropped.
  void Refuse(std::string header);
  // False when fewer than `count` messages have ended, well or not, in that time.
  bool WaitFor(size_t count, absl::Duration timeout = absl::Seconds(20));
  size_t arrived() const;
  // Only when nothing is under way.
  const std::deque<Received>& received() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return received_; }

 private:
  mutable absl::Mutex mutex_;
  std::string refused_ ABSL_GUARDED_BY(mutex_) = "refuse me";
  std::deque<Received> received_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<MessageId, Received*> under_way_ ABSL_GUARDED_BY(mutex_);
  size_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Counts how sends end. Thread-safe; outlives the channels it is used with.
class SendResults {
 public:
  std::function<void(absl::Status)> Expect();
  // False when some have not ended in that time.
  bool WaitForAll(absl::Duration timeout = absl::Seconds(20));
  // How often each code was seen.
  int Count(absl::StatusCode code) const;
  int total() const;
  // Sends whose `done` ran more than once.
  int repeated() const;

 private:
  mutable absl::Mutex mutex_;
  std::vector<int> calls_ ABSL_GUARDED_BY(mutex_);  // by send
  std::vector<absl::StatusCode> codes_ ABSL_GUARDED_BY(mutex_);
};

inline absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace aludel
