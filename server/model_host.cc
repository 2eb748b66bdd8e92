#include "server/model_host.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// An engine turns its loop at least twice a second; a step of a big model on a slow machine may take seconds.
constexpr absl::Duration kWedgedAfter = absl::Seconds(30);

}  // namespace

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Load(const ModelOptions& options,
                                                           const CodecOptions& codec_options,
                                                           CodecSide side) {
  auto host = std::make_unique<ModelHost>();
  ALUDEL_ASSIGN_OR_RETURN(host->device_, OpenDevice(options.device));
  ALUDEL_ASSIGN_OR_RETURN(host->model_,
                          Transformer::Load(host->device_.get(), options.directory, options.transformer));
  ALUDEL_ASSIGN_OR_RETURN(host->tokenizer_, Tokenizer::Load(options.directory));

  std::vector<std::string> formats = codec_options.formats;
  if (formats.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(formats, ListFormats(codec_options.artifact));
    // "raw" is what everybody has and nobody prefers.
    std::stable_partition(formats.begin(), formats.end(), [](const std::string& f) { return f != "raw"; });
  }
  for (const std::string& format : formats) {
    ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<KvCodec> codec,
                            OpenCodec(format, codec_options.artifact, side, *host->model_));
    host->codecs_.push_back(std::move(codec));
  }

  EngineOptions engine = options.engine;
  if (options.kv_bytes > 0) {
    const size_t block_bytes =
        host->model_->MakeKvLayout(1, engine.block_tokens, engine.kv_dtype).total_bytes();
    engine.kv_blocks = static_cast<int64_t>(options.kv_bytes / block_bytes);
    if (engine.kv_blocks == 0) {
      return absl::InvalidArgumentError(absl::StrCat("engine.kv_bytes: found ", options.kv_bytes,
                                                     ", want at least one block of ", block_bytes, " bytes"));
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(host->engine_, Engine::Start(host->model_.get(), host->tokenizer_.get(), engine));
  return host;
}

const KvCodec* ModelHost::FindCodec(absl::string_view name) const {
  for (const auto& codec : codecs_) {
    if (codec->name() == name) return codec.get();
  }
  return nullptr;
}

v1::ModelIdentity ModelHost::Identity() const {
  const ModelConfig& config = model_->config();
  v1::ModelIdentity identity;
  identity.set_architecture(config.architecture);
  identity.set_weights_hash(model_->hash());
  identity.set_tokenizer_fingerprint(tokenizer_->fingerprint());
  identity.set_layers(config.layers);
  identity.set_kv_heads(config.kv_heads);
  identity.set_head_dim(config.head_dim);
  identity.set_vocab(config.vocab);
  identity.set_max_positions(config.max_positions);
  return identity;
}

absl::Status ModelHost::Health() const {
  const absl::Duration silent = absl::Now() - engine_->stats().last_progress;
  if (silent < kWedgedAfter) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the engine has made no progress for ",
                                             absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1)))));
}

size_t ModelHost::HandoverBytesBound(const KvCodec& codec, int64_t tokens) const {
  const int64_t chunk = engine_->options().chunk_tokens;
  const int64_t chunks = 4 * ((tokens + chunk - 1) / chunk) + 4;
  const auto& shipped = codec.shipped_layers();
  const int64_t layers = std::count(shipped.begin(), shipped.end(), true);
  // Every frame may carry a constant part, at most what a frame of one token weighs, and is padded to a line.
  constexpr size_t kPadding = 64;
  return layers * (codec.MaxFrameBytes(tokens) + chunks * (codec.MaxFrameBytes(1) + kPadding));
}

}  // namespace aludel
