#include "server/decode/handoff/handoff_trace.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace aludel {
namespace {

enum Row : int { kCompute = 1, kEncode = 2, kLink = 3, kReconstruct = 4, kOwn = 5 };
constexpr const char* kRowNames[] = {"compute (prefill server)", "encode (prefill server)", "link",
                                     "reconstruct (decode server)", "own tokens, first step (decode server)"};

std::string NameOf(uint32_t first_layer, uint32_t layers, uint32_t token_begin) {
  return layers == 1 ? absl::StrCat("layer ", first_layer, " from token ", token_begin)
                     : absl::StrCat("layers ", first_layer, " to ", first_layer + layers - 1, " from token ",
                                    token_begin);
}

// A complete event; times are microseconds.
nlohmann::json Bar(Row row, std::string name, double begin, double end, nlohmann::json args) {
  return {{"ph", "X"},   {"pid", 1},    {"tid", static_cast<int>(row)},      {"name", std::move(name)},
          {"ts", begin}, {"cat", "kv"}, {"dur", std::max(0.0, end - begin)}, {"args", std::move(args)}};
}

}  // namespace

void HandoffTrace::Begin(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  begin_ = now;
  producer_.clear();
  frames_.clear();
}

void HandoffTrace::Producer(const v1::RunComputed& computed) {
  absl::MutexLock lock(&mutex_);
  producer_.assign(computed.frames().begin(), computed.frames().end());
}

void HandoffTrace::Received(const FrameHeader& header, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  frames_[header.sequence] = {header.coverage, header.payload_bytes, now};
}

void HandoffTrace::Applied(uint32_t sequence, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = frames_.find(sequence);
  if (found != frames_.end()) found->second.applied = now;
}

void HandoffTrace::FirstToken(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  first_token_ = now;
}

std::string HandoffTrace::ToJson(const std::string& request_id, const std::string& format) const {
  absl::MutexLock lock(&mutex_);
  nlohmann::json events = nlohmann::json::array();
  for (int row = kCompute; row <= kOwn; ++row) {
    events.push_back({{"ph", "M"},
                      {"pid", 1},
                      {"tid", row},
                      {"name", "thread_name"},
                      {"args", {{"name", kRowNames[row - kCompute]}}}});
  }
  double computed_until = 0;
  for (const v1::FrameTimes& times : producer_) {
    const std::string name = NameOf(times.first_layer(), times.layers(), times.token_begin());
    events.push_back(
        Bar(kCompute, name, computed_until, times.encoded_from_us(), {{"tokens", times.tokens()}}));
    events.push_back(Bar(kEncode, name, times.encoded_from_us(), times.sent_us(), nlohmann::json::object()));
    computed_until = times.sent_us();
  }
  const auto at = [begin = begin_](absl::Time time) { return absl::ToDoubleMicroseconds(time - begin); };
  double reconstructed_until = 0;
  for (const auto& [sequence, frame] : frames_) {
    const std::string name =
        NameOf(frame.coverage.first_layer, frame.coverage.layers, frame.coverage.token_begin);
    const nlohmann::json args = {{"sequence", sequence}, {"bytes", frame.payload_bytes}};
    const double received = at(frame.received);
    // Of a frame that the producer had cached its times say little, but they are there.
    const double sent =
        sequence < producer_.size() ? std::min(producer_[sequence].sent_us(), received) : received;
    events.push_back(Bar(kLink, name, sent, received, args));
    if (frame.applied == absl::InfiniteFuture()) continue;
    const double begin = std::max(received, reconstructed_until);
    reconstructed_until = at(frame.applied);
    events.push_back(Bar(kReconstruct, name, begin, reconstructed_until, args));
  }
  if (first_token_ != absl::InfiniteFuture()) {
    events.push_back(Bar(kOwn, "recomputed tokens, first token", reconstructed_until, at(first_token_),
                         nlohmann::json::object()));
  }
  const nlohmann::json trace = {{"displayTimeUnit", "ms"},
                                {"otherData", {{"request", request_id}, {"format", format}}},
                                {"traceEvents", std::move(events)}};
  // A request's id is whatever its client sent.
  return trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void HandoffTrace::Fill(v1::RequestTrace* trace) const {
  absl::MutexLock lock(&mutex_);
  const auto at = [begin = begin_](absl::Time time) {
    return time == absl::InfiniteFuture() ? 0 : absl::ToDoubleSeconds(time - begin);
  };
  trace->set_first_token(at(first_token_));
  for (const auto& [sequence, frame] : frames_) {
    if (static_cast<size_t>(trace->frames_size()) == kMaxFrames) {
      trace->set_frames_left_out(static_cast<uint32_t>(frames_.size() - kMaxFrames));
      return;
    }
    v1::FrameTrace* out = trace->add_frames();
    out->set_first_layer(frame.coverage.first_layer);
    out->set_layers(frame.coverage.layers);
    out->set_token_begin(frame.coverage.token_begin);
    out->set_tokens(frame.coverage.tokens);
    out->set_bytes(frame.payload_bytes);
    if (sequence < producer_.size()) {
      out->set_encoded_from(producer_[sequence].encoded_from_us() * 1e-6);
      out->set_sent(producer_[sequence].sent_us() * 1e-6);
    }
    out->set_received(at(frame.received));
    out->set_applied(at(frame.applied));
  }
}

absl::Status HandoffTrace::WriteTo(const std::string& path, const std::string& request_id,
                                   const std::string& format) const {
  const std::string part = absl::StrCat(path, ".part");
  std::ofstream file(part);
  file << ToJson(request_id, format);
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("its trace cannot be written to ", path));
  }
  return absl::OkStatus();
}

}  // namespace aludel
