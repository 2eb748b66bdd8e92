#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/gateway/access/request_record.h"
#include "server/gateway/openai/answer/completion_response.h"
#include "server/gateway/openai/api_error.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// Measures one completion: when its tokens and its text came, and from that what the answer, the metrics, the log line
// and the client's account say of it. Used by one thread at a time, but for Flushed.
class CompletionMeter {
 public:
  struct Options {
    std::string model;
    std::string id;  // of the answer
    std::chrono::steady_clock::time_point received;
    CompletionOutcome outcome;  // as far as the request tells it
    OnCompletionEnd on_end;     // once, before the last bytes of the answer; may be null
  };
  // `metrics` must outlive this.
  CompletionMeter(Options options, const RequestMetrics* metrics)
      : options_(std::move(options)), metrics_(metrics) {}

  // The decode server's report, which comes with the first token.
  void OnStarted(const v1::Started& started);
  void OnTrace(const v1::RequestTrace& trace) { trace_ = trace; }
  void OnToken(CompletionChoice* choice);
  // Something can be shown. True for the first time.
  bool OnText();
  // From any thread: that is in the client's socket.
  void Flushed() { first_flush_seconds_ = SecondsSinceReceived(); }
  // The answer begins anew.
  void Restart();

  const v1::Started& started() const { return started_; }
  bool stream() const { return options_.outcome.stream; }
  int64_t tokens() const { return tokens_; }
  // As of now. Its trace is this meter's.
  CompletionReport Report() const;
  // Tells metrics and on_end, before the client has the last bytes: it may ask again at once. `error`: how it ended,
  // null where the answer is whole.
  void End(const ApiError* error, const std::vector<CompletionChoice>& choices) const;

 private:
  double SecondsSinceReceived() const;
  CompletionOutcome Outcome(const ApiError* error, const std::vector<CompletionChoice>& choices,
                            const CompletionReport& report) const;

  const Options options_;
  const RequestMetrics* const metrics_;
  v1::Started started_;
  std::optional<v1::RequestTrace> trace_;
  bool has_text_ = false;
  int64_t tokens_ = 0;
  double first_token_seconds_ = 0;                 // when the first token came here
  double first_text_seconds_ = 0;                  // when the first text did that could be shown
  std::atomic<double> first_flush_seconds_{-1.0};  // when it was in the client's socket
};

}  // namespace aludel
