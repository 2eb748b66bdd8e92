#include "server/host/model_host.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/open_device.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine_options.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/prefill_warm_up.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "server/handoff/identity.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

absl::StatusOr<std::unique_ptr<Transformer>> LoadModel(Device* device, const ModelOptions& options,
                                                       const LoadProgress& progress) {
  TransformerOptions transformer = options.transformer;
  if (transformer.stream.packers == 0) transformer.stream.packers = options.device.threads;
  ALUDEL_ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> model,
      Transformer::Load(device, {options.directory, options.adapter}, transformer, progress));
  const LoadReport& report = model->load_report();
  spdlog::info("loaded {} ({}, {}): {:.3f} GB in {:.2f} s, {:.2f} GB/s{}",
               ModelPath(options.directory, options.adapter).Text(), model->config().architecture,
               model->config().quantization.method == QuantizationMethod::kNone
                   ? "unquantized"
                   : Name(model->config().quantization.method),
               static_cast<double>(report.bytes) / 1e9, report.seconds,
               static_cast<double>(report.bytes) / 1e9 / report.seconds,
               report.past_cache ? ", past the page cache" : "");
  if (report.kept_fp8 > 0) {
    spdlog::info("{} matrices stay in FP8; engine {{ weights: \"{}\" }} dequantizes them", report.kept_fp8,
                 Name(transformer.compute));
  }
  if (report.dequantized_fp8 > 0) {
    spdlog::warn(
        "{} matrices are FP8 with a scale for each block, or have an adapter merged, and are kept in {}; "
        "engine "
        "{{ weights: \"fp8\" }} rounds them to FP8 with a scale for each output",
        report.dequantized_fp8, Name(transformer.compute));
  }
  return model;
}

// The lines of a file of /proc that begin with `name`, each value once.
void AddValues(const std::string& path, absl::string_view name, std::set<std::string>* values) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, name)) values->insert(line);
  }
}

// The processors that may compute here; empty where the kernel does not say.
std::string Machine(bool cpu) {
  std::set<std::string> models;
  if (cpu) {
    AddValues("/proc/cpuinfo", "model name", &models);
  } else {
    std::error_code ignored;
    for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
      AddValues(gpu.path() / "information", "Model:", &models);
    }
  }
  return absl::StrJoin(models, ",");
}

absl::StatusOr<std::vector<std::string>> FormatsToOpen(const CodecOptions& options) {
  if (!options.formats.empty()) return options.formats;
  ALUDEL_ASSIGN_OR_RETURN(std::vector<std::string> formats, ListFormats(options.artifact));
  // "raw" is always available and always last.
  std::stable_partition(formats.begin(), formats.end(), [](const std::string& f) { return f != "raw"; });
  return formats;
}

}  // namespace

absl::Status ModelHost::Load(const ModelOptions& options, const CodecOptions& codec_options,
                             absl::FunctionRef<absl::Status()> open, const LoadProgress& progress) {
  // Small files first: a missing one is reported before gigabytes are loaded.
  ALUDEL_RETURN_IF_ERROR(ModelConfig::Load(options.directory).status());
  std::vector<std::string> warnings;
  ALUDEL_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(options.directory, &warnings));
  for (const std::string& warning : warnings) spdlog::warn("{}", warning);
  ALUDEL_RETURN_IF_ERROR(FormatsToOpen(codec_options).status());

  instructions_ = options.device.instructions;
  ALUDEL_ASSIGN_OR_RETURN(device_, OpenDevice(options.device));
  ALUDEL_ASSIGN_OR_RETURN(model_, LoadModel(device_.get(), options, progress));
  ALUDEL_RETURN_IF_ERROR(open());

  EngineOptions engine = options.engine;
  if (options.kv_bytes > 0) {
    const auto block_bytes =
        static_cast<int64_t>(model_->MakeKvLayout(1, engine.block_tokens, engine.kv_dtype).total_bytes());
    const int64_t padding = BlockPool::PaddingBlocks(device_.get());
    engine.kv_blocks = static_cast<int64_t>(options.kv_bytes) / block_bytes - padding;
    if (engine.kv_blocks < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "engine.kv_bytes: found ", options.kv_bytes, ", want at least ", (1 + padding) * block_bytes,
          ": a block of ", block_bytes, " bytes", padding > 0 ? " and one that fills decode steps up" : ""));
    }
  }
  if (engine.kv_dtype == DType::kFp8 && options.device.name != "cpu") {
    spdlog::info("engine.kv_dtype is \"fp8\": prefill attention takes the kernel of instructions \"mma\"");
  }
  ALUDEL_ASSIGN_OR_RETURN(prefill_samples_, WarmUp(*model_, engine.kv_dtype));
  const PrefillSample& longest = prefill_samples_.back();
  spdlog::info("warm: prefill of {} tokens took {:.1f} ms", longest.tokens, 1e3 * longest.seconds);
  ALUDEL_RETURN_IF_ERROR(WarmUpPrefill(*model_, engine.kv_dtype));
  const auto start = std::chrono::steady_clock::now();
  ALUDEL_ASSIGN_OR_RETURN(engine_, Engine::Start(model_.get(), tokenizer_.get(), engine));
  // No request has come yet: these are the warm-up's.
  const ReplayStats replays = device_->replay_stats(model_->stream());
  if (replays.eager > 0) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    spdlog::info("warm: the cache and CUDA graphs of {} kinds of decode steps took {:.1f} s{}",
                 replays.captured, seconds,
                 replays.reason.empty() ? "" : absl::StrCat("; others have none: ", replays.reason));
  }
  return absl::OkStatus();
}

absl::Status ModelHost::OpenFormats(const CodecOptions& options, OpenFormat open) const {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> formats, FormatsToOpen(options));
  if (options.formats.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> video, ListVideoFormats(options.artifact));
    for (const std::string& format : video) {
      spdlog::warn("format {} is not offered: it is of packing video, and codec.formats does not name it",
                   format);
    }
  }
  // Where the list is the artifact's own, a format fitted to other consumers alone is no mistake; an artifact
  // of which nothing fits this model is, unless adapters over it may be what it is for.
  const bool named = !options.formats.empty();
  absl::Status refused;
  bool any_fits = options.artifact.empty();
  for (const std::string& format : formats) {
    if (const absl::Status opened = open(format, *model_); !opened.ok()) {
      if ((named && !options.adapters) || !absl::IsFailedPrecondition(opened)) return opened;
      refused = opened;
      spdlog::warn("format {} is not offered: {}", format, std::string(refused.message()));
      continue;
    }
    any_fits = any_fits || named || format != "raw";
  }
  return any_fits || options.adapters ? absl::OkStatus() : refused;
}

std::unique_ptr<AdapterPool> ModelHost::MakeAdapterPool(const std::string& directory, AdapterCodecs codecs,
                                                        int max_resident) const {
  return std::make_unique<AdapterPool>(
      device_.get(),
      LoraWeights::Base{directory, model_->hash(), model_->config(), model_->options().compute}, max_resident,
      std::move(codecs));
}

v1::ModelIdentity ModelHost::Identity() const {
  return ToProto(IdentityOf(model_->config(), model_->hash(),
                            {tokenizer_->fingerprint(), tokenizer_->vocabulary_fingerprint()},
                            model_->options().rope_length));
}

std::string ModelHost::Numerics() const {
  const bool cpu = device_->name() == "cpu";
  const std::string machine = Machine(cpu);
  if (machine.empty()) return "";
  const TransformerOptions& transformer = model_->options();
  return absl::StrCat(cpu ? "cpu" : "cuda", " ", instructions_, " ", machine,
                      " compute=", Name(transformer.compute), " kv=", Name(engine_->options().kv_dtype),
                      " weights=", WeightsText());
}

std::string ModelHost::WeightsText() const {
  return absl::StrCat(static_cast<int>(model_->options().weight_format()),
                      model_->load_report().kept_fp8 > 0 ? "+fp8" : "");
}

std::unique_ptr<PinnedMemory> ModelHost::PinFrames(absl::Span<uint8_t> frames, const Transport& transport) {
  auto pinned = std::make_unique<PinnedMemory>(device_.get(), frames);
  const std::string device = device_->name();
  if (!pinned->status().ok()) {
    spdlog::warn("frames are copied twice on their way from and to {}: {}", device,
                 std::string(pinned->status().message()));
  } else if (device != "cpu") {
    spdlog::info("frames of {} go through {} bytes of pinned host memory; this UCX {} GPU memory itself",
                 device, frames.size(), transport.reaches_gpu_memory() ? "would reach" : "does not reach");
  }
  return pinned;
}

EngineStats ModelHost::Stats() {
  EngineStats stats = engine_->stats();
  absl::MutexLock lock(&mutex_);
  if (stats.replays.reason != logged_eager_reason_) {
    logged_eager_reason_ = stats.replays.reason;
    spdlog::warn("some decode steps run without a graph: {}", logged_eager_reason_);
  }
  return stats;
}

absl::Duration ModelHost::EngineSilence() {
  const auto now = std::chrono::steady_clock::now();
  absl::MutexLock lock(&mutex_);
  if (const uint64_t layers = model_->layers_run(); layers != layers_seen_) {
    layers_seen_ = layers;
    layers_moved_ = now;
  }
  return absl::FromChrono(now - std::max(layers_moved_, engine_->stats().last_progress));
}

size_t ModelHost::HandoffBytesBound(const CodecSpec& codec, int64_t tokens) const {
  // A producer without our device may take steps of the default, however large ours are.
  constexpr int64_t kDefaultStep = 256;
  const int64_t chunk = std::min(engine_->options().max_num_batched_tokens, kDefaultStep);
  const int64_t chunks = 4 * ((tokens + chunk - 1) / chunk) + 4;
  const auto& shipped = codec.shipped_layers;
  const int64_t layers = std::count(shipped.begin(), shipped.end(), true);
  // Every frame may carry a constant part, at most what a frame of one token weighs, and the tag of its
  // cipher, and is padded to a line.
  constexpr size_t kPadding = 64 + FrameCipher::kTagBytes;
  return layers * (codec.max_frame_bytes(tokens) + chunks * (codec.max_frame_bytes(1) + kPadding));
}

size_t ModelHost::StepFrameBound(const CodecSpec& codec) const {
  return FrameRing::Weight(codec.max_frame_bytes(engine_->options().max_num_batched_tokens) +
                           FrameCipher::kTagBytes);
}

size_t ModelHost::StepBytesBound(const CodecSpec& codec) const {
  return StepBytesBound(codec, engine_->options().max_num_batched_tokens);
}

size_t ModelHost::StepBytesBound(const CodecSpec& codec, int64_t tokens) const {
  const auto& shipped = codec.shipped_layers;
  return std::count(shipped.begin(), shipped.end(), true) *
         FrameRing::Weight(codec.max_frame_bytes(tokens) + FrameCipher::kTagBytes);
}

std::optional<int64_t> ModelHost::StepTokens(const CodecSpec& codec, size_t credit) const {
  constexpr int64_t kFewest = 64;
  int64_t tokens = engine_->options().max_num_batched_tokens;
  while (StepBytesBound(codec, tokens) > credit) {
    if (tokens <= kFewest) return std::nullopt;
    tokens = std::max(kFewest, tokens / 2);
  }
  return tokens;
}

size_t ModelHost::HandoffWindow(const CodecSpec& codec, int64_t tokens, size_t window) const {
  constexpr size_t kSteps =
      4;  // one computed, one on its way, one reconstructed, one that the ring may waste
  return std::min(HandoffBytesBound(codec, tokens), std::max(window, kSteps * StepBytesBound(codec)));
}

namespace {

std::string LayoutOf(const ArtifactFormat& format) {
  std::string layout = absl::StrCat(static_cast<int>(format.kind));
  for (const ArtifactLayer& layer : format.layers) {
    absl::StrAppend(&layout, " ", static_cast<int>(layer.mode), ",", layer.rank_k, ",", layer.rank_v, ",",
                    layer.rank_h);
  }
  const AludelShape& shape = format.aludel;
  absl::StrAppend(&layout, " ", shape.recomputed_layers, " ", shape.head_tokens, " ", shape.tail_tokens, " ",
                  Name(shape.packing));
  for (const AludelGroup& group : shape.groups) {
    absl::StrAppend(&layout, " ", group.first_layer, ",", group.layers, ",", group.rank);
  }
  return layout;
}

// Peers tell versions apart by the hashes of their encoders: frames of one encoder are laid out in one way.
absl::Status CheckLayouts(const ArtifactManifest& manifest, const ArtifactOrigin& origin,
                          const ArtifactOrigin& offered) {
  for (const auto& [key, layout] : origin.layouts) {
    const auto there = offered.layouts.find(key);
    if (there == offered.layouts.end() || there->second == layout) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("artifact ", manifest.directory, ", format and encoder ", key,
                     ": frames are laid out otherwise than in ", offered.directory,
                     ", which is in use; give the format another name"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ArtifactOrigin> OriginOf(const ArtifactManifest& manifest) {
  const std::string& directory = manifest.directory;
  ArtifactOrigin origin{.directory = directory, .producer_hash = manifest.producer_hash};
  for (const ArtifactFormat& format : manifest.formats) {
    origin.layouts[absl::StrCat(format.name, " ", format.encoder.sha256)] = LayoutOf(format);
  }
  origin.version = std::filesystem::path(std::string(absl::StripSuffix(directory, "/"))).filename();
  ALUDEL_ASSIGN_OR_RETURN(origin.manifest_hash, HashManifest(directory));
  return origin;
}

absl::StatusOr<std::unique_ptr<EncoderFactory>> OpenSide(const std::string& format,
                                                         const std::string& artifact,
                                                         const Transformer& model, const EncoderFactory*) {
  return OpenEncoders(format, artifact, model);
}

absl::StatusOr<std::unique_ptr<DecoderFactory>> OpenSide(const std::string& format,
                                                         const std::string& artifact,
                                                         const Transformer& model, const DecoderFactory*) {
  return OpenDecoders(format, artifact, model);
}

}  // namespace

template <typename Factory>
absl::StatusOr<std::unique_ptr<CodecHost<Factory>>> CodecHost<Factory>::Load(
    const ModelOptions& options, const CodecOptions& codec_options, const LoadProgress& progress) {
  std::unique_ptr<CodecHost> host(new CodecHost);
  const auto open = [&]() -> absl::Status {
    ALUDEL_ASSIGN_OR_RETURN(auto set, host->OpenSet(codec_options));
    host->sets_ = std::make_unique<CodecSets<Factory>>(std::move(set));
    return absl::OkStatus();
  };
  ALUDEL_RETURN_IF_ERROR(host->ModelHost::Load(options, codec_options, open, progress));
  return host;
}

template <typename Factory>
absl::StatusOr<std::shared_ptr<const CodecSet<Factory>>> CodecHost<Factory>::OpenSet(
    const CodecOptions& options) const {
  auto set = std::make_shared<CodecSet<Factory>>();
  CodecOptions resolved = options;  // once: all formats are of one version
  if (!options.artifact.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(options.artifact));
    resolved.artifact = manifest.directory;
    ALUDEL_ASSIGN_OR_RETURN(set->origin, OriginOf(manifest));
  }
  ALUDEL_RETURN_IF_ERROR(
      OpenFormats(resolved, [&](const std::string& format, const Transformer& model) -> absl::Status {
        ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<Factory> codec,
                                OpenSide(format, resolved.artifact, model, static_cast<Factory*>(nullptr)));
        set->codecs.push_back(std::move(codec));
        return absl::OkStatus();
      }));
  return set;
}

template <typename Factory>
absl::StatusOr<std::shared_ptr<const CodecSet<Factory>>> CodecHost<Factory>::OpenNext(
    const CodecOptions& options) const {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(options.artifact));
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactOrigin origin, OriginOf(manifest));
  const auto offered = sets_->offered();
  for (const auto& set : offered) {
    if (set->origin.manifest_hash == origin.manifest_hash && set->origin.directory == origin.directory)
      return set;
  }
  ALUDEL_RETURN_IF_ERROR(sets_->CheckRoom(MonotonicNow(), options.keep_previous));
  ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, offered.front()->origin.producer_hash));
  for (const auto& set : offered) ALUDEL_RETURN_IF_ERROR(CheckLayouts(manifest, origin, set->origin));
  ALUDEL_RETURN_IF_ERROR(VerifyArtifact(manifest));
  CodecOptions next = options;
  next.artifact = manifest.directory;
  return OpenSet(next);
}

template class CodecHost<EncoderFactory>;
template class CodecHost<DecoderFactory>;

}  // namespace aludel
