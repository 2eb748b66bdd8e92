#include "server/decode/plan/chosen_artifact.h"

#include <set>

namespace aludel {

ChosenArtifact::ChosenArtifact(const CodecSet<DecoderFactory>& first, CostModel* costs)
    : costs_(costs),
      directory_(first.origin.directory),
      manifest_hash_(first.origin.manifest_hash),
      formats_(FormatsOf(first)) {}

ChosenArtifact::Formats ChosenArtifact::FormatsOf(const CodecSet<DecoderFactory>& set) {
  Formats formats;
  for (const auto& codec : set.codecs) {
    const CodecSpec& spec = codec->spec();
    formats[spec.name] = {spec.artifact_hash, spec.decoder_hash};
  }
  return formats;
}

void ChosenArtifact::Choose(const CodecSet<DecoderFactory>& set) {
  absl::MutexLock lock(&mutex_);
  if (set.origin.manifest_hash == manifest_hash_ && set.origin.directory == directory_) return;
  Formats next = FormatsOf(set);
  std::set<std::string> changed;
  for (const auto& [name, hashes] : formats_) {
    const auto found = next.find(name);
    if (found == next.end() || found->second != hashes) changed.insert(name);
  }
  // With the lock: a thread that chooses the same one finds that of the other forgotten.
  costs_->Forget(changed);
  directory_ = set.origin.directory;
  manifest_hash_ = set.origin.manifest_hash;
  formats_ = std::move(next);
}

}  // namespace aludel
