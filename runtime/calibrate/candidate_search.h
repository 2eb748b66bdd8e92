#pragma once

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/calibrate/aludel_candidate.h"

namespace aludel {

// What a search tries: one structure at one rate. Every call is minutes of work.
class CandidateFitter {
 public:
  virtual ~CandidateFitter() = default;
  // Fits encoder and decoders, and measures them.
  virtual absl::StatusOr<AludelCandidate> Fit(int recomputed_layers, double bytes_per_token) = 0;
  // Measures it again, as it is.
  virtual absl::Status Measure(AludelCandidate* candidate) = 0;
  // Bytes per token of the structure that was fitted last, its latents in steps of this length.
  virtual double BytesAt(const AludelCandidate& candidate, float step) = 0;
};

struct SearchGoal {
  double max_kl = 0;     // nats, that the loss of the worst consumer is below with 95 % confidence
  double raw_bytes = 0;  // of a token's raw cache
  int fewest_recomputed = 0;
  int most_recomputed = 0;
  std::function<bool()> time_is_up;  // then nothing more is fitted; none: never

  bool Over() const { return time_is_up && time_is_up(); }
};

// The fewest recomputed layers, then the fewest bytes, that meet the loss; when the time is over, what met it so far.
// One structure is fitted in any case. OutOfRange, with the measured floor of every structure, where none does;
// DeadlineExceeded where none did until the time was over.
absl::StatusOr<AludelCandidate> FindCandidate(const SearchGoal& goal, CandidateFitter& fitter);

}  // namespace aludel
