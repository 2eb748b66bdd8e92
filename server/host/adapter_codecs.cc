#include "server/host/adapter_codecs.h"

#include <algorithm>
#include <utility>

#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/format_name.h"
#include "runtime/codec/open_codec.h"
#include "runtime/status_macros.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// Null where the format has none for this model.
const ArtifactDecoder* DecoderOf(const ArtifactFormat& format, const std::string& hash) {
  for (const ArtifactDecoder& decoder : format.decoders) {
    if (decoder.consumer_hash == hash) return &decoder;
  }
  return nullptr;
}

AdapterCodecs::Format Describe(const std::string& name, const ArtifactFormat& format) {
  AdapterCodecs::Format described{
      .name = name,
      .encoder_hash = format.encoder.sha256,
      .kind = format.kind == ArtifactKind::kAludel ? FrameKind::kAludel : FrameKind::kScd};
  for (const ArtifactDecoder& decoder : format.decoders) {
    described.decoders[decoder.consumer_hash] = decoder.file.sha256;
  }
  return described;
}

}  // namespace

absl::StatusOr<AdapterCodecs> AdapterCodecs::Create(const CodecOptions& options, const Transformer* model) {
  AdapterCodecs codecs;
  codecs.artifact_ = options.artifact;
  codecs.model_ = model;
  if (options.artifact.empty() || !options.adapters) return codecs;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(options.artifact));
  const std::vector<std::string>& wanted = options.formats;
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> video, ListVideoFormats(options.artifact));
  for (const ArtifactFormat& format : manifest.formats) {
    // As for the model itself: of packing video only what is named.
    const bool taken = wanted.empty() && std::find(video.begin(), video.end(), format.name) == video.end();
    if (taken) codecs.formats_.push_back(Describe(format.name, format));
  }
  for (const std::string& name : wanted) {
    const absl::StatusOr<NamedFormat> named = FindNamed(manifest, name);  // not so: "raw", say
    if (named.ok()) codecs.formats_.push_back(Describe(name, *named->format));
  }
  return codecs;
}

std::set<std::string> AdapterCodecs::ChangedIn(const AdapterCodecs& next) const {
  std::set<std::string> changed;
  for (const Format& format : formats_) {
    const auto same = std::find_if(next.formats_.begin(), next.formats_.end(),
                                   [&](const Format& other) { return other.name == format.name; });
    const auto keeps = [&same](const auto& decoder) {
      const auto found = same->decoders.find(decoder.first);
      return found != same->decoders.end() && found->second == decoder.second;
    };
    if (same == next.formats_.end() || same->encoder_hash != format.encoder_hash ||
        !std::all_of(format.decoders.begin(), format.decoders.end(), keeps)) {
      changed.insert(format.name);
    }
  }
  return changed;
}

AdapterCodecs::Opened AdapterCodecs::Open(const std::string& adapter_hash) const {
  Opened opened;
  if (formats_.empty()) return opened;
  const absl::StatusOr<ArtifactManifest> manifest = LoadArtifactManifest(artifact_);
  if (!manifest.ok()) {
    spdlog::warn("adapters have no decoders: {}", std::string(manifest.status().message()));
    return opened;
  }
  for (const Format& format : formats_) {
    const absl::StatusOr<NamedFormat> named = FindNamed(*manifest, format.name);
    if (!named.ok()) continue;
    const ArtifactFormat& entry = *named->format;
    const ArtifactDecoder* decoder = DecoderOf(entry, adapter_hash);
    if (decoder == nullptr) continue;
    if (entry.encoder.sha256 != format.encoder_hash) {
      spdlog::warn(
          "artifact {}, format {}: its encoder is not the one that this server asks prefill servers for; "
          "restart it, or publish versions of the artifact",
          artifact_, format.name);
      continue;
    }
    auto decoders = OpenDecoders(format.name, artifact_, *model_, adapter_hash);
    if (!decoders.ok()) {
      spdlog::error("format {} is not offered to adapter {}: {}", format.name, decoder->consumer,
                    std::string(decoders.status().message()));
      continue;
    }
    opened.decoders.push_back(*std::move(decoders));
    if (decoder->expected && named->planes == 0) opened.losses[format.name] = decoder->expected->kl;
    const ArtifactDecoder* const owner = SharedWith(entry.decoders, *decoder);
    if (owner != nullptr) opened.shared[format.name] = owner->consumer;
  }
  return opened;
}

}  // namespace aludel
