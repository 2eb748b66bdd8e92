#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/weight_file.h"

namespace aludel {

// Files of an aludel format (FORMAT.md). Every shape is checked against the manifest and the model.
absl::StatusOr<AludelEncoderWeights> LoadAludelEncoder(const ArtifactManifest& manifest,
                                                       const ArtifactFormat& format, int64_t kv_dim,
                                                       int64_t hidden);
// `decoder` is one of the format's.
absl::StatusOr<AludelDecoderWeights> LoadAludelDecoder(const ArtifactManifest& manifest,
                                                       const ArtifactFormat& format,
                                                       const ArtifactDecoder& decoder, int64_t kv_dim,
                                                       int64_t hidden);

// Planes of an embedded format's first group: what NAME@N may name.
absl::StatusOr<int> LoadPlanes(const ArtifactManifest& manifest, const ArtifactFormat& format);

// What a packing that HasCoder adds to files of both sides, by tensor.
std::map<std::string, std::vector<float>> ListScales(const AludelEncoderWeights& weights,
                                                     LatentPacking packing);

TensorList ListTensors(const AludelEncoderWeights& weights, MatrixStorage storage);
TensorList ListTensors(const AludelDecoderWeights& weights, MatrixStorage storage);

}  // namespace aludel
