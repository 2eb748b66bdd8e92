#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace aludel {

// One first token.
struct TtftSample {
  double seconds = 0;  // at the client: from its request's first byte to the answer of one token
  int64_t payload_bytes = 0;
  int64_t handed_off_tokens = 0;
  std::string choice;  // of the planner: "local" or a wire format
  // Seconds, exclusive, as the servers say, and "client" for the rest: they sum to `seconds`.
  std::vector<std::pair<std::string, double>> stages;
};

// How a prompt got its cache: by local prefill, or from a prefill server that had never seen it (cold) or had
// all of its frames cached (warm).
enum class TtftState : uint8_t { kLocal, kCold, kWarm };
std::string TtftStateName(TtftState state);

// All samples of one way to the first token, over one link.
struct TtftRow {
  double link = 0;       // bits per second; 0: no cap
  int64_t tokens = 0;    // of the prompt
  std::string format;    // "local", "planner", or a wire format
  std::string artifact;  // that the servers had loaded, where several are measured
  TtftState state = TtftState::kLocal;
  std::vector<TtftSample> samples;
  std::string reason;  // why there are no (more) samples, else empty
};

struct TtftSpread {
  double median = 0;  // the lower of two middle ones, so that it is the time of one request
  double least = 0;
  double most = 0;
};
// `samples` has at least one.
TtftSpread SpreadOf(const std::vector<TtftSample>& samples);

// The sample whose time is the median: its stages belong together.
const TtftSample& MedianSample(const std::vector<TtftSample>& samples);

// The median of what the planner chose over that of the best option that it had, local prefill and cold
// handoffs; 0 where either lacks samples.
double PlannerOfBest(const TtftRow& planner, const std::vector<TtftRow>& rows);

// How many times sooner than local prefill over the same link in the same rounds; 0 where either lacks samples.
double SpeedupOf(const TtftRow& row, const std::vector<TtftRow>& rows);

// The format, and behind an "@" the artifact where several are measured.
std::string FormatName(const TtftRow& row);

// "10 Mb/s", "2.5 Gb/s", "no cap".
std::string LinkName(double bits_per_second);

// For people: one line a row, times in milliseconds, the stages of the median sample; below, what the planner
// chose, and why rows lack samples.
std::string TtftTable(const std::vector<TtftRow>& rows);

// An array with one object a row: link_bits_per_second (null: no cap), tokens, format, artifact, state,
// samples, seconds {median, least, most, all}, speedup, bytes_per_token, recomputed_tokens, stages (seconds),
// of the planner choices (counts) and of_best; without samples `reason` alone.
nlohmann::ordered_json TtftJson(const std::vector<TtftRow>& rows);

}  // namespace aludel
