#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/decode/decode_context.h"
#include "server/decode/handoff/handoff.h"
#include "server/decode/plan/planner.h"
#include "server/decode/request_timeline.h"

namespace aludel {

// Plans one request and learns from it: reads what the decode server predicts, and holds what the request takes of the
// planner's shared state, a place among the trials and the tokens of local prefill that others wait for, until Release.
// Calls follow each other; Release may come from any thread and more than once.
class RequestPlanner {
 public:
  // `context` must outlive it.
  explicit RequestPlanner(const DecodeContext& context) : context_(context) {}

  // Begins a trial where the plan is one. `adapter`, here and below: what answers. One
  // that no codes can be decoded for has local plans, with reason kAdapter where there might be others.
  absl::StatusOr<Plan> Choose(const PlanRequest& wanted, absl::Span<const int32_t> prompt,
                              const std::string& cache_salt, const RequestAdapter& adapter);
  // Local prefill and every format that a ready prefill server has, as they are predicted now, whatever the request allows.
  std::vector<v1::PlanOption> Options(absl::Span<const int32_t> prompt, const std::string& cache_salt,
                                      const RequestAdapter& adapter) const;
  // Tokens of the prompt that earlier handoffs of the plan's format have left here, where computing the rest
  // is sooner than asking for it; else 0.
  int64_t CachedEnough(const Plan& plan, absl::Span<const int32_t> prompt, const std::string& cache_salt,
                       const RequestAdapter& adapter) const;
  // ResourceExhausted where the first token cannot come in time. `deadline` is one of MonotonicNow().
  absl::Status CheckDeadline(const Plan& plan, absl::Time deadline) const;
  // What the plan's format is one of; after Choose.
  const SequenceCodecs& codecs() const { return *codecs_; }
  // The plan is carried out.
  void Begin(const Plan& plan, int64_t prompt_tokens);
  // The first token is out, or the end of an answer without one: reports the plan's outcome to the cost model, and
  // releases. `handoff` is a remote plan's, else null; what its prefill server reports later is learnt when it comes.
  void Learn(const RequestTimeline::Started& started, const SequenceTimes& times, int64_t cached_tokens,
             Handoff* handoff);
  void Release();
  // Releases, and lets go of the codecs: before the context goes, after the last call.
  void Close();

 private:
  void EndLocalWait();
  // A place for a trial, so that a hedge has one if it is needed. False, and none taken, where all are.
  bool BeginTrial();
  void EndTrial();
  // Tokens of the prompt that are cached here, exactly.
  int64_t CachedHere(absl::Span<const int32_t> prompt, const std::string& cache_salt,
                     const RequestAdapter& adapter) const;
  // Of a handoff of `shipped`, the prompt's beginning, and of computing the rest here.
  std::optional<double> PredictRemote(const CostModel::Target& target, const std::string& format,
                                      absl::Span<const int32_t> prompt, absl::Span<const int32_t> shipped,
                                      const std::string& cache_salt) const;
  // Of `shipped`, what the prefill server says that it has stored; nothing where it says nothing.
  std::optional<int64_t> Stored(const std::string& target, const std::string& format,
                                absl::Span<const int32_t> shipped, const std::string& cache_salt) const;
  // Of `shipped`, what this server's own store can hand over in a format; all of it where the store has all that the
  // format hands over of a prompt of so many tokens.
  int64_t KeptTokens(const std::string& format, absl::Span<const int32_t> shipped, int64_t prompt_tokens,
                     const std::string& cache_salt) const;
  // Of a handoff that local prefill beside it, or after its time was up, was sooner than. Null where what was cached
  // is not any more.
  void LearnOvertaken(const RequestTimeline::Started& started, const Handoff* handoff);

  const DecodeContext& context_;
  std::optional<SequenceCodecs> codecs_;   // Choose's
  uint64_t learned_ = 0;                   // CostModel::forgotten, then
  std::atomic<int64_t> local_tokens_{-1};  // of local prefill, that others wait for; -1: none runs
  std::atomic<bool> trial_{false};
  bool whole_ = false;  // all of the prompt is scored: slower than others, so that nothing is learned from it
  bool computes_rest_ = false;     // behind what a prefill server may be asked for
  PlanTarget target_;              // of a remote plan, once begun
  int64_t replayed_ = 0;           // tokens of a stored plan, once begun
  std::optional<int64_t> stored_;  // of its prompt, as its target said
  bool beside_local_ = false;      // prompts were being prefilled here when it was planned
};

}  // namespace aludel
