#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/calibrate/aludel_candidate.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/model/model_config.h"

namespace aludel {

// A job's format in its artifact directory: read where the job extends one, written in the end.

// An encoder that is there stays as it is.
inline bool Extends(const AludelJob& job) { return job.base.add || job.retune; }

std::string FormatName(const AludelJob& job, int recomputed_layers);

// The models of a job by hash.
struct ModelHashes {
  std::string producer;
  std::vector<std::string> consumers;  // as the job names them
};

// What --add or --retune extends.
struct OldFormat {
  AludelShape shape;
  AludelEncoderWeights encoder;
  HostMatrix side;                             // of its decoders
  std::vector<AludelDecoderWeights> decoders;  // [consumers] for --retune, else none
};

// `old` is what the destination holds, `name` the format's. FailedPrecondition where it is not this
// producer's, of another preset, or has no network to tune; NotFound where there is none.
absl::StatusOr<OldFormat> LoadOldFormat(const AludelJob& job, const std::optional<ArtifactManifest>& old,
                                        const std::string& name, const ModelHashes& models,
                                        const ModelConfig& config);

// What a job has found.
struct AludelOutcome {
  const AludelCandidate& chosen;
  const CalibrationPrompts& prompts;
  size_t tuning_prompts = 0;  // beside them
};

// Publishes the format with everything else that `old` holds, and returns its name. A new format stands first,
// one that is replaced where it stood; an extended one keeps its notes and the decoders of other consumers.
absl::StatusOr<std::string> SaveFormat(const AludelJob& job, const std::optional<ArtifactManifest>& old,
                                       const ModelHashes& models, const AludelOutcome& outcome);

}  // namespace aludel
