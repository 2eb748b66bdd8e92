#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/bench/ttft/ttft_rows.h"

namespace aludel {

// What is measured: servers that answer one request after the other.
class TtftTarget {
 public:
  virtual ~TtftTarget() = default;

  // One token over a handoff in `format`, by local prefill where it is "local", or as the planner likes.
  // FailedPrecondition where the servers did something else (a fallback); Unavailable where they are gone;
  // Cancelled where the user stops.
  virtual absl::StatusOr<TtftSample> FirstToken(const std::vector<int32_t>& prompt,
                                                const std::string& format) = 0;
  // Returns when the prefill server has nothing under way: the frames of earlier prompts are in its cache.
  virtual absl::Status AwaitIdle() = 0;
  // Prompts so far whose frames the prefill server had all cached.
  virtual absl::StatusOr<int64_t> StoreHits() = 0;
};

inline constexpr char kLocalPrefill[] = "local";
inline constexpr char kPlanner[] = "planner";
inline constexpr char kNoTime[] = "no time was left for it";  // a row's reason

struct TtftRounds {
  double link = 0;
  std::vector<int64_t> lengths;      // tokens
  std::vector<std::string> formats;  // wire formats, "planner"; local prefill is always measured beside them
  int64_t repeats = 5;
  absl::Duration allowed = absl::InfiniteDuration();  // no round begins that would probably end later
  std::function<std::vector<int32_t>(int64_t tokens)> prompt;  // one that no server has seen
  // Hears of each way that is about to be measured.
  std::function<void(int64_t done, int64_t total, absl::string_view what)> progress;
};

// Measures in rounds. Each takes every length and every format (cold, then the same prompt again: warm; what
// the planner chooses cold only) and local prefill of every length once, in an order of its own, so that what
// changes on the machine meanwhile changes for all. `order` decides the order. One discarded request of each
// way goes before. `rows` has all rows when it returns, in order of length, local prefill first; it stays
// valid where the status is not Ok (Cancelled, Unavailable), with what was measured until then. A row that
// failed once is not measured again and says why.
absl::Status MeasureRounds(TtftTarget* target, const TtftRounds& rounds, std::mt19937_64* order,
                           std::vector<TtftRow>* rows);

}  // namespace aludel
