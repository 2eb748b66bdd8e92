#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/codec/transform/weights.h"

namespace aludel {

// Files of a transform format (FORMAT.md). Every shape is checked against the manifest and the model.
absl::StatusOr<TransformEncoderWeights> LoadTransformEncoder(const ArtifactManifest& manifest,
                                                             const ArtifactFormat& format, int64_t kv_dim,
                                                             int64_t hidden);
// `decoder` is one of the format's.
absl::StatusOr<TransformDecoderWeights> LoadTransformDecoder(const ArtifactManifest& manifest,
                                                             const ArtifactFormat& format,
                                                             const ArtifactDecoder& decoder, int64_t kv_dim,
                                                             int64_t hidden);

TensorList ListTensors(const TransformEncoderWeights& weights, MatrixStorage storage);
TensorList ListTensors(const TransformDecoderWeights& weights, MatrixStorage storage);

}  // namespace aludel
