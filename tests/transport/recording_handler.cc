#include "tests/transport/recording_handler.h"

#include <algorithm>
#include <utility>

namespace aludel {

std::vector<uint8_t> Pattern(size_t bytes, uint64_t seed) {
  std::vector<uint8_t> data(bytes);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (uint8_t& byte : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return data;
}

absl::Span<uint8_t> RecordingHandler::OnHeader(MessageId id, absl::Span<const uint8_t> header,
                                               size_t payload_bytes) {
  absl::MutexLock lock(&mutex_);
  std::string text(header.begin(), header.end());
  if (text == refused_) return {};
  Received& message = received_.emplace_back();
  message.header = std::move(text);
  message.bytes = payload_bytes;
  if (payload_bytes == 0) {
    message.finished = true;
    ++finished_;
    return {};
  }
  message.data.reset(new uint8_t[payload_bytes]);
  under_way_[id] = &message;
  return {message.data.get(), payload_bytes};
}

void RecordingHandler::OnPayload(MessageId id, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  auto entry = under_way_.find(id);
  if (entry == under_way_.end()) std::abort();  // twice, or never accepted
  entry->second->finished = true;
  entry->second->status = std::move(status);
  under_way_.erase(entry);
  ++finished_;
}

void RecordingHandler::Refuse(std::string header) {
  absl::MutexLock lock(&mutex_);
  refused_ = std::move(header);
}

bool RecordingHandler::WaitFor(size_t count, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_ >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), timeout);
}

size_t RecordingHandler::arrived() const {
  absl::MutexLock lock(&mutex_);
  return received_.size();
}

std::function<void(absl::Status)> SendResults::Expect() {
  absl::MutexLock lock(&mutex_);
  const size_t send = calls_.size();
  calls_.push_back(0);
  return [this, send](absl::Status status) {
    absl::MutexLock lock(&mutex_);
    ++calls_[send];
    codes_.push_back(status.code());
  };
}

bool SendResults::WaitForAll(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return codes_.size() >= calls_.size(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&all), timeout);
}

int SendResults::Count(absl::StatusCode code) const {
  absl::MutexLock lock(&mutex_);
  return std::count(codes_.begin(), codes_.end(), code);
}

int SendResults::total() const {
  absl::MutexLock lock(&mutex_);
  return codes_.size();
}

int SendResults::repeated() const {
  absl::MutexLock lock(&mutex_);
  return std::count_if(calls_.begin(), calls_.end(), [](int calls) { return calls > 1; });
}

}  // namespace aludel
