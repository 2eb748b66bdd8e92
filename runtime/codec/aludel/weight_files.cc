#include "runtime/codec/aludel/weight_files.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/aludel/latent_tables.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

std::string GroupTensor(size_t group, const char* what) { return absl::StrCat("groups.", group, ".", what); }

std::vector<float> BitsAsFloats(const std::vector<int>& bits) { return {bits.begin(), bits.end()}; }

absl::StatusOr<std::vector<float>> LoadDecays(const WeightFile& file, size_t group, int64_t rank) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<float> decays, file.Values(GroupTensor(group, "decays"), {rank}));
  for (const float value : decays) {
    if (value >= kMinDecay && value <= kMaxDecay) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s holds %g, want values from 2^-23 to 1 - 2^-23", file.path(),
                        GroupTensor(group, "decays"), value));
  }
  return decays;
}

absl::StatusOr<int> PlanesOfGroup(const WeightFile& file, size_t group) {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<float> values, file.Values(GroupTensor(group, "planes"), {1}));
  const auto planes = static_cast<int>(std::clamp(values[0], 0.0f, kMaxEmbeddedPlanes + 1.0f));
  if (planes >= 1 && planes <= kMaxEmbeddedPlanes && static_cast<float>(planes) == values[0]) return planes;
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s is %g, want a whole number from 1 to %d",
                                                    file.path(), GroupTensor(group, "planes"), values[0],
                                                    kMaxEmbeddedPlanes));
}

absl::Status CheckVideoLayout(const WeightFile& file, size_t group) {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<float> values, file.Values(GroupTensor(group, "video"), {1}));
  if (values[0] == static_cast<float>(kVideoLayout)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s is %g, want %d, the only layout of pictures", file.path(),
                      GroupTensor(group, "video"), values[0], kVideoLayout));
}

absl::StatusOr<LatentGrid> LoadGrid(const WeightFile& file, size_t group, int64_t rank,
                                    LatentPacking packing) {
  LatentGrid grid;
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<float> step, file.Values(GroupTensor(group, "step"), {1}));
  grid.step = step[0];
  if (!(grid.step > 0)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s is %g, want above 0", file.path(),
                                                      GroupTensor(group, "step"), grid.step));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<float> bits, file.Values(GroupTensor(group, "bits"), {rank}));
  for (const float value : bits) {
    grid.bits.push_back(static_cast<int>(std::clamp(value, 0.0f, kMaxLatentBits + 1.0f)));
    if (grid.bits.back() >= 1 && grid.bits.back() <= kMaxLatentBits &&
        static_cast<float>(grid.bits.back()) == value) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s holds %g, want whole numbers from 1 to %d", file.path(),
                        GroupTensor(group, "bits"), value, kMaxLatentBits));
  }
  if (HasScales(packing)) {
    ALUDEL_ASSIGN_OR_RETURN(grid.decays, LoadDecays(file, group, rank));
  }
  if (packing == LatentPacking::kEmbedded) {
    ALUDEL_ASSIGN_OR_RETURN(grid.planes, PlanesOfGroup(file, group));
  }
  if (packing == LatentPacking::kVideo) {
    ALUDEL_RETURN_IF_ERROR(CheckVideoLayout(file, group));
    grid.video = kVideoLayout;
  }
  return grid;
}

void AddGrid(size_t group, const LatentGrid& grid, TensorList* tensors) {
  tensors->AddVector(GroupTensor(group, "step"), {grid.step});
  tensors->AddVector(GroupTensor(group, "bits"), BitsAsFloats(grid.bits));
  if (!grid.decays.empty()) tensors->AddVector(GroupTensor(group, "decays"), grid.decays);
  if (grid.planes > 0) tensors->AddVector(GroupTensor(group, "planes"), {static_cast<float>(grid.planes)});
  if (grid.video > 0) tensors->AddVector(GroupTensor(group, "video"), {static_cast<float>(grid.video)});
}

}  // namespace

absl::StatusOr<AludelEncoderWeights> LoadAludelEncoder(const ArtifactManifest& manifest,
                                                       const ArtifactFormat& format, int64_t kv_dim,
                                                       int64_t hidden) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::Open(manifest, format.encoder));
  const AludelShape& shape = format.aludel;
  AludelEncoderWeights weights(shape.groups.size());
  for (size_t g = 0; g < weights.size(); ++g) {
    const int64_t rank = shape.groups[g].rank;
    AludelEncoderGroup& group = weights[g];
    ALUDEL_ASSIGN_OR_RETURN(group.matrix,
                            file.Matrix(GroupTensor(g, "matrix"), rank, shape.groups[g].layers * 2 * kv_dim));
    if (shape.has_side()) {
      ALUDEL_ASSIGN_OR_RETURN(group.side, file.Matrix(GroupTensor(g, "side"), rank, hidden));
    }
    ALUDEL_ASSIGN_OR_RETURN(group.offset, file.Values(GroupTensor(g, "offset"), {rank}));
    ALUDEL_ASSIGN_OR_RETURN(group.grid, LoadGrid(file, g, rank, shape.packing));
  }
  return weights;
}

absl::StatusOr<AludelDecoderWeights> LoadAludelDecoder(const ArtifactManifest& manifest,
                                                       const ArtifactFormat& format,
                                                       const ArtifactDecoder& decoder, int64_t kv_dim,
                                                       int64_t hidden) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::Open(manifest, decoder.file));
  const AludelShape& shape = format.aludel;
  AludelDecoderWeights weights;
  weights.groups.resize(shape.groups.size());
  int64_t side = shape.has_side() ? hidden : 0;
  if (shape.has_side() && file.Has("side")) {
    ALUDEL_ASSIGN_OR_RETURN(side, file.Rows("side"));
    if (side < kSideRankUnit || side > hidden || side % kSideRankUnit != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor side has %d rows, want a multiple of %d up to %d", file.path(), side,
                          kSideRankUnit, hidden));
    }
    ALUDEL_ASSIGN_OR_RETURN(weights.side, file.Matrix("side", side, hidden));
  }
  for (size_t g = 0; g < weights.groups.size(); ++g) {
    const int64_t inputs = side + shape.groups[g].rank;
    const int64_t outputs = shape.groups[g].layers * 2 * kv_dim;
    AludelDecoderGroup& group = weights.groups[g];
    ALUDEL_ASSIGN_OR_RETURN(group.grid, LoadGrid(file, g, shape.groups[g].rank, shape.packing));
    ALUDEL_ASSIGN_OR_RETURN(group.bias, file.Values(GroupTensor(g, "bias"), {outputs}));
    const bool mlp = file.Has(GroupTensor(g, "hidden"));
    // A decoder has one of the two parts or both.
    if (!mlp || file.Has(GroupTensor(g, "linear"))) {
      ALUDEL_ASSIGN_OR_RETURN(group.linear, file.Matrix(GroupTensor(g, "linear"), outputs, inputs));
    }
    if (!mlp) continue;
    ALUDEL_ASSIGN_OR_RETURN(const int64_t width, file.Rows(GroupTensor(g, "hidden")));
    ALUDEL_ASSIGN_OR_RETURN(group.hidden, file.Matrix(GroupTensor(g, "hidden"), width, inputs));
    ALUDEL_ASSIGN_OR_RETURN(group.hidden_bias, file.Values(GroupTensor(g, "hidden_bias"), {width}));
    ALUDEL_ASSIGN_OR_RETURN(group.out, file.Matrix(GroupTensor(g, "out"), outputs, width));
  }
  return weights;
}

absl::StatusOr<int> LoadPlanes(const ArtifactManifest& manifest, const ArtifactFormat& format) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::Open(manifest, format.encoder));
  return PlanesOfGroup(file, 0);
}

std::map<std::string, std::vector<float>> ListScales(const AludelEncoderWeights& weights,
                                                     LatentPacking packing) {
  std::map<std::string, std::vector<float>> scales;
  for (size_t g = 0; g < weights.size(); ++g) {
    const LatentGrid& grid = weights[g].grid;
    if (packing == LatentPacking::kVideo) {
      scales[GroupTensor(g, "video")] = {static_cast<float>(grid.video)};
      continue;
    }
    scales[GroupTensor(g, "decays")] = grid.decays;
    if (packing == LatentPacking::kEmbedded)
      scales[GroupTensor(g, "planes")] = {static_cast<float>(grid.planes)};
  }
  return scales;
}

TensorList ListTensors(const AludelEncoderWeights& weights, MatrixStorage storage) {
  TensorList tensors(storage);
  for (size_t g = 0; g < weights.size(); ++g) {
    tensors.AddMatrix(GroupTensor(g, "matrix"), weights[g].matrix);
    if (weights[g].side.rows > 0) tensors.AddMatrix(GroupTensor(g, "side"), weights[g].side);
    tensors.AddVector(GroupTensor(g, "offset"), weights[g].offset);
    AddGrid(g, weights[g].grid, &tensors);
  }
  return tensors;
}

TensorList ListTensors(const AludelDecoderWeights& weights, MatrixStorage storage) {
  TensorList tensors(storage);
  if (weights.side.rows > 0) tensors.AddMatrix("side", weights.side);
  for (size_t g = 0; g < weights.groups.size(); ++g) {
    const AludelDecoderGroup& group = weights.groups[g];
    AddGrid(g, group.grid, &tensors);
    tensors.AddVector(GroupTensor(g, "bias"), group.bias);
    if (group.linear.rows > 0) tensors.AddMatrix(GroupTensor(g, "linear"), group.linear);
    if (group.hidden.rows == 0) continue;
    tensors.AddMatrix(GroupTensor(g, "hidden"), group.hidden);
    tensors.AddVector(GroupTensor(g, "hidden_bias"), group.hidden_bias);
    tensors.AddMatrix(GroupTensor(g, "out"), group.out);
  }
  return tensors;
}

}  // namespace aludel
