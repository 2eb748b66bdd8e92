#include "runtime/bench/make_codec.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/scd/calibrate.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/evaluate/compute_share.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights/weight_stream.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBits = 4;
constexpr int64_t kPiece = 16;

HostMatrix RandomMatrix(int64_t rows, int64_t cols, std::mt19937_64& random) {
  HostMatrix matrix = HostMatrix::Zeros(rows, cols);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const float scale = 1.0f / std::sqrt(static_cast<float>(cols));
  for (float& value : matrix.values) value = scale * uniform(random);
  return matrix;
}

LatentGrid Grid(int64_t rank) { return {0.1f, std::vector<int>(rank, kBits)}; }

AludelEncoderGroup RandomEncoder(const ModelConfig& config, const AludelGroup& group,
                                 std::mt19937_64& random) {
  AludelEncoderGroup encoder;
  encoder.matrix = RandomMatrix(group.rank, group.layers * 2 * config.kv_dim(), random);
  encoder.side = RandomMatrix(group.rank, config.hidden, random);
  encoder.offset.assign(group.rank, 0.0f);
  encoder.grid = Grid(group.rank);
  return encoder;
}

AludelDecoderGroup RandomDecoder(const ModelConfig& config, const AludelGroup& group, int64_t width,
                                 std::mt19937_64& random) {
  const int64_t outputs = group.layers * 2 * config.kv_dim();
  AludelDecoderGroup decoder;
  decoder.grid = Grid(group.rank);
  decoder.bias.assign(outputs, 0.0f);
  decoder.hidden = RandomMatrix(width, config.hidden + group.rank, random);
  decoder.hidden_bias.assign(width, 0.0f);
  decoder.out = RandomMatrix(outputs, width, random);
  return decoder;
}

absl::StatusOr<AludelShape> ShapeOf(const MakeCodecOptions& options, const ModelConfig& config) {
  if (options.recomputed_layers < 0 || options.recomputed_layers > config.layers - 2) {
    return absl::InvalidArgumentError(absl::StrFormat("--recomputed-layers is %d, want 0 to %d",
                                                      options.recomputed_layers, config.layers - 2));
  }
  AludelShape shape;
  shape.recomputed_layers = options.recomputed_layers;
  shape.packing = LatentPacking::kFixed;
  shape.groups = MakeGroups(config, options.recomputed_layers, options.group_layers);
  const double raw = 2.0 * config.layers * static_cast<double>(config.kv_dim()) * sizeof(Bf16);
  const double bytes = options.bytes_per_token > 0 ? options.bytes_per_token : raw / 16;
  const auto groups = static_cast<double>(shape.groups.size());
  int64_t rank = std::min(static_cast<int64_t>(bytes * 8 / kBits / groups),
                          AffordableRank(options.compute_share, config, shape.groups, /*has_side=*/true));
  // Products are fastest over whole pieces; a calibrated rank is padded where it is multiplied.
  if (rank > kPiece) rank = rank / kPiece * kPiece;
  for (AludelGroup& group : shape.groups) {
    group.rank = std::clamp<int64_t>(rank, 1, group.layers * 2 * config.kv_dim());
  }
  return shape;
}

// A format and its random halves.
template <typename EncoderWeights, typename DecoderWeights>
struct Made {
  ArtifactFormat format;
  EncoderWeights encoder;
  DecoderWeights decoder;
  MadeCodec report;
};

absl::StatusOr<Made<AludelEncoderWeights, AludelDecoderWeights>> MakeAludel(const MakeCodecOptions& options,
                                                                            const ModelConfig& config) {
  Made<AludelEncoderWeights, AludelDecoderWeights> made;
  ALUDEL_ASSIGN_OR_RETURN(const AludelShape shape, ShapeOf(options, config));
  const int64_t width = AffordableWidth(options.compute_share, config, shape);
  std::mt19937_64 random(options.seed);
  for (const AludelGroup& group : shape.groups) {
    made.encoder.push_back(RandomEncoder(config, group, random));
    made.decoder.groups.push_back(RandomDecoder(config, group, width, random));
  }
  made.format.name = absl::StrCat("aludel-p", options.recomputed_layers);
  made.format.kind = ArtifactKind::kAludel;
  made.format.aludel = shape;
  made.report.groups = static_cast<int>(shape.groups.size());
  made.report.group_layers = shape.groups.front().layers;
  made.report.rank = shape.groups.front().rank;
  made.report.width = width;
  made.report.bytes_per_token =
      static_cast<double>(made.report.groups) * static_cast<double>(made.report.rank) * kBits / 8;
  return made;
}

Made<ScdEncoderWeights, ScdDecoderWeights> MakeScd(const MakeCodecOptions& options,
                                                   const ModelConfig& config) {
  Made<ScdEncoderWeights, ScdDecoderWeights> made;
  const ScdOptions published;
  const int64_t hidden = config.hidden;
  const int64_t kv_dim = config.kv_dim();
  const int64_t rank_k = RankOf(published.rank_k, kv_dim);
  const int64_t rank_v = RankOf(published.rank_v, kv_dim);
  const int64_t rank_h = RankOf(published.rank_h, hidden);
  const int64_t width = published.aligner.width;
  const int patched = PublishedPatchLayers(config.layers);
  std::mt19937_64 random(options.seed);
  made.format.name = "scd";
  for (int layer = 0; layer < config.layers; ++layer) {
    ScdEncoderLayer encoder;
    ScdDecoderLayer decoder;
    if ((layer + 1) * patched / config.layers > layer * patched / config.layers) {
      encoder.mode = decoder.mode = ScdMode::kPatch;
      encoder.h = RandomMatrix(rank_h, hidden, random);
      decoder.aligner = {RandomMatrix(hidden, rank_h, random), std::vector<float>(hidden),
                         RandomMatrix(2 * width, rank_h, random), std::vector<float>(2 * width),
                         RandomMatrix(hidden, width, random)};
    } else {
      encoder.k = RandomMatrix(rank_k, kv_dim, random);
      encoder.v = RandomMatrix(rank_v, kv_dim, random);
      decoder.k = RandomMatrix(kv_dim, rank_k, random);
      decoder.v = RandomMatrix(kv_dim, rank_v, random);
    }
    made.format.layers.push_back({encoder.mode, encoder.k.rows, encoder.v.rows, encoder.h.rows});
    made.report.bytes_per_token +=
        static_cast<double>(encoder.k.rows + encoder.v.rows + encoder.h.rows) * sizeof(Bf16);
    made.encoder.push_back(std::move(encoder));
    made.decoder.push_back(std::move(decoder));
  }
  return made;
}

template <typename EncoderWeights, typename DecoderWeights>
absl::StatusOr<MadeCodec> WriteFormat(const MakeCodecOptions& options,
                                      Made<EncoderWeights, DecoderWeights> made) {
  ArtifactManifest manifest;
  manifest.producer = ModelName(options.producer);
  ALUDEL_ASSIGN_OR_RETURN(manifest.producer_hash, HashModel(ModelPath::Parse(options.producer)));
  ArtifactDecoder entry;
  entry.consumer = ModelName(options.consumer);
  ALUDEL_ASSIGN_OR_RETURN(entry.consumer_hash, HashModel(ModelPath::Parse(options.consumer)));
  ArtifactFormat& format = made.format;
  format.notes["weights"] = "random: for speed only";
  ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(options.out));
  ALUDEL_ASSIGN_OR_RETURN(const std::optional<ArtifactManifest> old, FindArtifact(options.out));
  if (old.has_value()) {
    ALUDEL_RETURN_IF_ERROR(KeepFormats(*old, {format.name}, /*replace_controls=*/false, &writer, &manifest));
  }
  ALUDEL_ASSIGN_OR_RETURN(format.encoder, writer.AddEncoder(format.name, made.encoder));
  ALUDEL_ASSIGN_OR_RETURN(entry.file, writer.AddDecoder(format.name, entry.consumer, made.decoder));
  format.decoders.push_back(std::move(entry));
  made.report.format = format.name;
  manifest.formats.push_back(std::move(format));
  ALUDEL_RETURN_IF_ERROR(writer.Publish(manifest));
  return made.report;
}

}  // namespace

absl::StatusOr<MadeCodec> MakeCodec(const MakeCodecOptions& options) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig config,
                          ModelConfig::Load(ModelPath::Parse(options.producer).base));
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig consumer,
                          ModelConfig::Load(ModelPath::Parse(options.consumer).base));
  if (config.layers != consumer.layers || config.kv_dim() != consumer.kv_dim() ||
      config.hidden != consumer.hidden) {
    return absl::FailedPreconditionError(absl::StrCat(options.producer, " and ", options.consumer,
                                                      " have different shapes (see aludel-inspect)"));
  }
  if (options.preset == "scd") return WriteFormat(options, MakeScd(options, config));
  if (options.preset != "aludel") {
    return absl::InvalidArgumentError(absl::StrCat("preset is \"", options.preset, "\", want aludel or scd"));
  }
  ALUDEL_ASSIGN_OR_RETURN(auto made, MakeAludel(options, config));
  return WriteFormat(options, std::move(made));
}

}  // namespace aludel
