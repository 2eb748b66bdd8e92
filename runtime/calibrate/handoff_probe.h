#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/codec/codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/oracle.h"

namespace aludel {

// Measures what a codec under calibration loses and costs, on prompts that no fit has seen: whole handoffs
// through serialized frames. Not thread-safe.
class HandoffProbe {
 public:
  // Answers every prompt by the consumer's local prefill first. `prompts` must outlive the probe.
  static absl::StatusOr<std::unique_ptr<HandoffProbe>> Create(Transformer& producer, Transformer& consumer,
                                                              absl::Span<const std::vector<int32_t>> prompts,
                                                              int max_answer_tokens,
                                                              const CalibrationProgress& progress);

  struct Result {
    double kl = 0;               // mean over all answer tokens, nats
    double kl_bound = 0;         // upper end of its 95 % bootstrap interval over prompts
    double bytes_per_token = 0;  // frames with headers over prompt tokens
  };
  // `visit`, where there is one, sees every frame.
  absl::StatusOr<Result> Measure(const EncoderFactory& encoder, const DecoderFactory& decoder,
                                 const std::function<absl::Status(const WireFrame&)>& visit = nullptr);

 private:
  HandoffProbe(Transformer& producer, Transformer& consumer) : producer_(producer), consumer_(consumer) {}

  struct Trial {
    absl::Span<const int32_t> prompt;
    Answer oracle;
  };

  Transformer& producer_;
  Transformer& consumer_;
  std::unique_ptr<BlockPool> producer_pool_, consumer_pool_;
  std::vector<Trial> trials_;
};

}  // namespace aludel
