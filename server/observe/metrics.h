#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/engine/engine_stats.h"
#include "transport/transport_stats.h"

namespace aludel {

// How a request was served. Each value set is small; see Metrics for the bound.
struct RequestLabels {
  std::string model;
  std::string plan;    // local, remote, cached, fallback
  std::string format;  // "" for local
};

// Exclusive seconds that sum to `ttft` (proto Stages).
struct StageSeconds {
  double queue = 0;
  double prefill = 0;
  double encode = 0;
  double transfer = 0;
  double reconstruct = 0;
  double recompute = 0;
  double first_decode = 0;
  double held = 0;     // the gateway: text that may yet become a tool call or a stop string waits for more
  double gateway = 0;  // the rest outside the decode server; 0 there, too
  double ttft = 0;
};

// Every metric of the three servers, under the prefix aludel_ with vLLM's stems and buckets, and the only
// code that knows Prometheus. One per process; thread-safe; a call costs a lock and a hash look-up, so once
// per token is fine and once per layer is not. A label takes at most kMaxLabelValues distinct values; what
// comes after is counted as "other", so that no peer can grow our memory.
class Metrics {
 public:
  static constexpr int kMaxLabelValues = 64;

  Metrics();
  ~Metrics();

  // Requests (decode and gateway). `outcome` is "ok" or a status code's name in lower case.
  void ObserveFirstToken(const RequestLabels& labels, const StageSeconds& stages);
  // A request that ended with an error and without a token, and how long that took.
  void ObserveUnanswered(const std::string& model, double seconds);
  // Makes the series of such requests start at 0, so that an alert sees the first one.
  void ExpectUnanswered(const std::string& model);
  void ObserveInterToken(const std::string& model, double seconds);
  void ObserveRequest(const RequestLabels& labels, const std::string& outcome, double seconds,
                      int64_t prompt_tokens, int64_t completion_tokens);

  // Of a request that got its first token: time until it was computed on, until its first token was made, and
  // from there to its end.
  void ObservePhases(const RequestLabels& labels, double queue, double prefill, double decode,
                     int64_t completion_tokens);

  // Handoffs. `direction` is "sent" or "received"; bytes include frame headers.
  void CountFrame(const std::string& direction, const std::string& format, uint64_t bytes);
  // `frames` 0 makes the series start at 0, so that an alert sees the first increase.
  void CountDroppedFrame(const std::string& reason, int64_t frames = 1);
  void CountHandoff(const std::string& direction, const std::string& outcome, double seconds);
  // A ticket of this decode server has ended, in this state (TicketState).
  void CountTicket(const std::string& end);
  void CountFallback(const std::string& reason);
  void CountPlan(const std::string& plan, const std::string& reason);
  // The planner's prediction for a plan that was carried out, and the truth: seconds to the first token.
  void ObservePrediction(const RequestLabels& labels, double predicted, double actual);
  // Bytes a second from a prefill server; 0 where its link was never the bottleneck.
  void SetLinkRate(const std::string& target, double bytes_per_second);
  // A handoff that failed goes on with another prefill server.
  void CountReplan(const std::string& reason);
  // State of one prefill server as a decode server sees it: "ready", "down" or "refused".
  void SetPrefillTarget(const std::string& target, const std::string& state);
  // State of one decode server as the gateway sees it.
  void SetDecodeTarget(const std::string& model, const std::string& target, bool ready);
  // A run could not go on encoding: its "receiver" had no more room, its "link" held what it had sent, or the
  // "arena" had no window for it.
  void CountStall(const std::string& reason);
  void SetTicketsOpen(int64_t tickets);
  void SetArena(uint64_t bytes_total, uint64_t bytes_reserved);
  // The prefill server's frame cache: look-ups by result, tokens found, chunks that had to go, bytes now.
  void SetFrameCache(uint64_t hits, uint64_t partial_hits, uint64_t misses, uint64_t tokens,
                     uint64_t evictions, uint64_t bytes);

  // HTTP (gateway).
  void CountHttpRequest(const std::string& path, int status);
  void SetHttpConnections(int64_t open);
  // Requests turned away before any work: the error's code, e.g. invalid_api_key.
  void CountHttpRefusal(const std::string& reason);
  // An answer whose decode server was lost: "restarted" or "continued" on another one, or "lost".
  void CountCutAnswer(const std::string& model, const std::string& outcome);
  // Requests in progress and queued where there is no engine (gateway).
  void SetRequests(const std::string& model, int64_t running, int64_t waiting);

  // Shadow checks (decode): one by outcome; its tokens; its divergence, one number per token.
  void CountShadowCheck(const std::string& model, const std::string& format, const std::string& outcome);
  void ObserveShadowTokens(const std::string& model, const std::string& format, int64_t agreeing,
                           int64_t differing);
  void ObserveShadowKl(const std::string& model, const std::string& format, double nats);

  // Spans by what became of them: exported, dropped (the queue was full), failed.
  void CountSpans(const std::string& result, int64_t spans);

  // Snapshots of counters that other components keep.
  void SetEngine(const std::string& model, const EngineStats& stats);
  void SetTransport(const TransportStats& stats);
  // Called before every Render, to take snapshots.
  void OnRender(std::function<void()> collect);

  // The text exposition format, for GET /metrics.
  std::string Render();
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace aludel
